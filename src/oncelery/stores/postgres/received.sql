-- received: queued -> queued with a lease to open its message, or with one more death counted; or buried over the limit
-- in: id, limit, lease (null = who opened it is dead; 0 = it was opened), now (null = server clock)
-- out: one row: the answer's name, how many were counted, and the job
CREATE OR REPLACE FUNCTION received(
  p_id text, p_limit integer, p_lease interval, p_now timestamptz, OUT answer text, OUT counted integer, OUT job jobs
) LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET lock_timeout = '5s' AS $$
DECLARE
  now timestamptz;
  v_death boolean;
BEGIN
  job := hold(p_id, NULL);
  now := coalesce(p_now, clock_timestamp());
  IF job.id IS NULL OR job.expires_at <= now THEN
    answer := 'Absent';
    RETURN;
  ELSIF job.state = 'queued' THEN
    IF p_lease > '0' AND job.opened_until > now + p_lease THEN
      -- Written by a clock that was ahead.
      job.opened_until := NULL;
    END IF;
    v_death := p_lease IS NULL OR (p_lease > '0' AND coalesce(job.opened_until <= now, false));
    IF NOT v_death AND p_lease > '0' AND job.opened_until IS NOT NULL THEN
      answer := 'Busy';
      RETURN;
    END IF;
    UPDATE jobs SET
      received = received + v_death::integer, opened_until = CASE WHEN p_lease > '0' THEN now + p_lease END
    WHERE id = p_id RETURNING * INTO job;
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
