-- discard: buried -> cancelled
-- in: id, now (null = server clock)     out: one row: the answer's name, and the job
CREATE OR REPLACE FUNCTION discard(p_id text, p_now timestamptz, OUT answer text, OUT job jobs)
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET lock_timeout = '5s' AS $$
DECLARE
  now timestamptz;
BEGIN
  job := hold(p_id, NULL);
  now := coalesce(p_now, clock_timestamp());
  IF job.id IS NULL OR job.expires_at <= now THEN
    answer := 'Absent';
  ELSIF job.state <> 'buried' THEN
    answer := 'NotBuried';
  ELSE
    job := cancel_buried(p_id, 'discarded', now);
    answer := 'Discarded';
  END IF;
END $$;
