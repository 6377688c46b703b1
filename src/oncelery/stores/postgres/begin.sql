-- begin: (absent | queued | running with a lapsed lease) -> running, a higher fence
--        running with a lapsed lease -> buried (too many crashes, or held) | cancelled (as requested)
-- in: the submission, safe, holder, worker, lease, max_crashes, hold, now (null = server clock)
-- out: one row: the answer's name, and the job (of a grant without its body, unless that was amended)
-- (It is not called "begin": psql would take that for the start of a body, and restore no plain dump of the database.)
CREATE OR REPLACE FUNCTION begin_run(
  p_id text, p_key text, p_alias text, p_task text, p_body bytea, p_digest text, p_follows text, p_scope text,
  p_queue text, p_caller text, p_retention interval, p_history interval, p_safe boolean,
  p_holder text, p_worker text, p_lease interval, p_max_crashes integer, p_hold boolean, p_now timestamptz,
  OUT answer text, OUT job jobs
) LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET lock_timeout = '5s' AS $$
DECLARE
  now timestamptz;
  asked record;
  v_known boolean;
  v_meets boolean;
  v_differ boolean := false;
BEGIN
  IF p_safe THEN
    PERFORM commit_safely();
  END IF;
  IF p_alias <> '' THEN
    PERFORM pg_advisory_xact_lock(lock_of(p_alias));
  END IF;
  job := hold(p_id, p_key);
  now := coalesce(p_now, clock_timestamp());
  v_known := job.id IS NOT NULL AND (job.expires_at IS NULL OR job.expires_at > now);

  IF v_known THEN
    IF job.state = 'running' OR job.changed_at > now THEN
      job := set_right(job, now);
    END IF;
    v_meets := job.state IN ('completed', 'buried')
      OR (job.state = 'running' AND job.holder <> p_holder AND job.lease_until > now);
  ELSE
    job := NULL;
    IF p_alias <> '' THEN
      asked := named(p_alias, p_digest, now);
      job := asked.job;
      v_differ := asked.differs;
    END IF;
    IF job.id IS NULL THEN
      job := set_right(keeper(p_key, now), now);
      IF job.state = 'running' AND job.lease_until <= now AND job.body = '' THEN
        PERFORM end_lapsed(job, now);
        job := keeper(p_key, now);
      END IF;
      v_differ := differ(key_digest(p_alias, p_digest), job.digest);
    END IF;
    v_meets := job.id IS NOT NULL;
    IF NOT v_meets AND p_body IS NULL THEN
      answer := 'Absent';
      RETURN;
    ELSIF NOT v_meets THEN
      job := accept(
        p_id, p_key, p_alias, p_task, p_body, p_digest, p_follows, p_scope, p_queue, p_caller, '0', p_retention,
        p_history, NULL, now
      );
    END IF;
  END IF;

  IF v_meets THEN
    answer := CASE
      WHEN v_differ THEN 'Mismatched' WHEN job.state IN ('completed', 'buried') THEN 'Finished' ELSE 'Busy'
    END;
    job := count_duplicate(job.id, p_caller, CASE
      WHEN v_differ THEN 'refused' WHEN job.state = 'completed' THEN 'replayed' WHEN job.state = 'buried' THEN 'buried'
      ELSE 'busy'
    END, now);
    RETURN;
  ELSIF job.state = 'cancelled' THEN
    answer := 'Cancelled';
    RETURN;
  ELSIF job.state = 'queued' AND (job.behind <> '' OR job.not_before > now) THEN
    answer := 'Later';
    UPDATE jobs SET received = 0, opened_until = NULL
    WHERE id = job.id AND (received > 0 OR opened_until IS NOT NULL);
    RETURN;
  ELSIF job.state = 'running' AND job.holder <> p_holder AND job.cancel_requested THEN
    job := end_lapsed(job, now);
    answer := 'Cancelled';
    RETURN;
  END IF;

  answer := 'Granted';
  IF job.state = 'queued' OR job.holder <> p_holder THEN
    IF job.state = 'running' THEN
      job := end_run(job.id, 'lapse', NULL, now);
    END IF;
    IF job.crashes > p_max_crashes OR (job.interrupted AND p_hold) THEN
      job := finish(
        job.id, 'buried', now, CASE WHEN job.crashes > p_max_crashes THEN 'crashed' ELSE 'outcome unknown' END,
        p_superseded => true
      );
      answer := 'Buried';
      RETURN;
    END IF;
    -- Only a first, undelayed message tells when others of its queue should have come.
    IF v_known AND job.begun_at IS NULL AND job.sent_at = job.created_at THEN
      PERFORM move_watermark(
        job.queue, job.sent_at, now, CASE WHEN p_now IS NULL THEN interval '0.1 seconds' ELSE '0' END
      );
    END IF;
    UPDATE jobs SET
      state = 'running', changed_at = now, begun_at = now, not_before = NULL,
      lease_until = now + p_lease, lease_for = p_lease, next_check = now + p_lease,
      holder = p_holder, worker = p_worker, attempt = attempt + 1,
      fence = greatest(fence + 1, (extract(epoch FROM now) * 1000000)::bigint),
      received = 0, opened_until = NULL, resent = 0
    WHERE id = job.id RETURNING * INTO job;
  END IF;
  IF NOT job.amended THEN
    job.body := NULL;
  END IF;
END $$;
