-- record: running -> running, with progress or a finished step (the first value of a name stays)
-- in: the lease's id, holder, fence and safe; progress, step name and value (null = none); now (null = server clock)
-- out: one row: the answer's name, whether a cancel is requested, the job's state
CREATE OR REPLACE FUNCTION record(
  p_id text, p_holder text, p_fence bigint, p_safe boolean, p_progress json, p_step text, p_value bytea,
  p_now timestamptz,
  OUT answer text, OUT cancel_requested boolean, OUT state text
) LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET lock_timeout = '5s' AS $$
DECLARE
  now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  IF p_safe THEN
    PERFORM commit_safely();
  END IF;
  UPDATE jobs AS job SET progress = coalesce(p_progress, job.progress), stepped = job.stepped OR p_step IS NOT NULL
  WHERE job.id = p_id AND job.state = 'running' AND job.fence = p_fence AND job.holder = p_holder
  RETURNING 'Recorded', job.cancel_requested, job.state INTO answer, cancel_requested, state;
  IF NOT FOUND THEN
    SELECT job.state INTO state FROM jobs AS job
    WHERE job.id = p_id AND job.fence >= p_fence;
    answer := CASE WHEN FOUND THEN 'Fenced' ELSE 'Absent' END;
  ELSIF p_step IS NOT NULL THEN
    INSERT INTO steps VALUES (p_id, p_step, p_value) ON CONFLICT DO NOTHING;
  END IF;
END $$;
