-- settle: running -> completed | buried | cancelled | queued (released), for its holder; fenced if it is not ours;
--         absent if the job, or this run's grant, is not known
-- in: the lease's id, key, holder, fence and safe; the settlement's name and fields; now (null = server clock)
-- out: one row: the answer's name, the job's state, the id of the job that may begin next
CREATE OR REPLACE FUNCTION settle(
  p_id text, p_key text, p_holder text, p_fence bigint, p_safe boolean,
  p_settlement text, p_result bytea, p_replaced_by bytea, p_omitted text,
  p_reason text, p_error json, p_cause text, p_delay interval, p_body bytea,
  p_now timestamptz,
  OUT answer text, OUT state text, OUT next_id text
) LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET lock_timeout = '5s' AS $$
DECLARE
  now timestamptz;
  job jobs;
BEGIN
  IF p_safe THEN
    PERFORM commit_safely();
  END IF;
  job := hold(p_id, p_key);
  now := coalesce(p_now, clock_timestamp());

  -- Also past its history: a run that others have ended must not take its job for lost.
  IF job.id IS NULL OR job.fence < p_fence THEN
    answer := 'Absent';
    RETURN;
  ELSIF (job.fence, job.holder) IS DISTINCT FROM (p_fence, p_holder) THEN
    answer := 'Fenced';
  ELSIF job.state <> 'running' THEN
    -- Sent again: the same settlement gets its answer again.
    answer := CASE WHEN job.state = ANY (CASE p_settlement
      WHEN 'complete' THEN '{completed}'::text[]
      WHEN 'bury' THEN '{buried}'
      WHEN 'cancel' THEN '{cancelled}'
      WHEN 'release' THEN '{queued,cancelled}'
    END) THEN 'Settled' ELSE 'Fenced' END;
  ELSE
    CASE p_settlement
      WHEN 'complete' THEN
        job := finish(
          p_id, 'completed', now, p_result => p_result, p_replaced_by => p_replaced_by, p_omitted => p_omitted
        );
      WHEN 'bury' THEN
        job := finish(p_id, 'buried', now, p_reason, p_error);
      WHEN 'cancel' THEN
        job := finish(p_id, 'cancelled', now, p_reason);
      WHEN 'release' THEN
        job := end_run(p_id, p_cause, p_error, now);
        PERFORM amend(p_id, p_body, job.digest);
        IF job.cancel_requested THEN
          job := finish(p_id, 'cancelled', now, job.cancel_reason);
        ELSE
          job := queue_again(p_id, p_delay, now);
        END IF;
    END CASE;
    answer := 'Settled';
  END IF;
  state := job.state;
  next_id := CASE WHEN job.state IN ('queued', 'running') THEN '' ELSE job.trail_id END;
END $$;
