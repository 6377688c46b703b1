-- received: queued -> queued with one more delivery counted, or buried when there are more than the limit
-- in: id, limit, now (null = server clock)     out: one row: the answer's name, how many were counted, and the job
CREATE OR REPLACE FUNCTION received(
  p_id text, p_limit integer, p_now timestamptz, OUT answer text, OUT counted integer, OUT job jobs
) LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET lock_timeout = '5s' AS $$
DECLARE
  now timestamptz;
BEGIN
  job := hold(p_id, NULL);
  now := coalesce(p_now, clock_timestamp());
  IF job.id IS NULL OR job.expires_at <= now THEN
    answer := 'Absent';
    RETURN;
  ELSIF job.state = 'queued' THEN
    UPDATE jobs SET received = received + 1 WHERE id = p_id RETURNING * INTO job;
    IF job.received > p_limit THEN
      job := finish(p_id, 'buried', now, 'never started');
      answer := 'Buried';
      RETURN;
    END IF;
  END IF;
  answer := CASE
    WHEN job.state IN ('completed', 'buried') THEN 'Finished' WHEN job.state = 'cancelled' THEN 'Cancelled' ELSE 'Counted'
  END;
  counted := job.received;
END $$;
