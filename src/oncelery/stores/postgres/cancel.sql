-- cancel: queued -> cancelled; running -> running with the request noted, or cancelled if forced
-- in: id, reason, force, unless_joined (for withdraw), now (null = server clock)     out: one row: the answer's name, and the job
CREATE OR REPLACE FUNCTION cancel(
  p_id text, p_reason text, p_force boolean, p_unless_joined boolean, p_now timestamptz, OUT answer text, OUT job jobs
) LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET lock_timeout = '5s' AS $$
DECLARE
  now timestamptz;
BEGIN
  job := hold(p_id, NULL);
  now := coalesce(p_now, clock_timestamp());
  IF job.id IS NULL OR job.expires_at <= now THEN
    answer := 'Absent';
  ELSIF job.state IN ('completed', 'buried') THEN
    answer := 'Finished';
  ELSIF job.state = 'cancelled' THEN
    answer := 'Cancelled';
  ELSIF p_unless_joined AND job.duplicates > 0 THEN
    answer := 'Existing';
  ELSIF job.state = 'running' AND NOT p_force THEN
    UPDATE jobs SET cancel_requested = true, cancel_reason = coalesce(nullif(cancel_reason, ''), p_reason)
    WHERE id = p_id RETURNING * INTO job;
    answer := 'Requested';
  ELSE
    job := finish(p_id, 'cancelled', now, p_reason, p_superseded => true);
    answer := 'Cancelled';
  END IF;
END $$;
