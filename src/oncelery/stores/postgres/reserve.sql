-- reserve: (absent | completed past retention | buried | cancelled) -> queued; else the job that is there
-- in: the submission, safe, on_duplicate, the quota of its scope (0 = no limit), now (null = server clock)
-- out: one row: the answer's name, for how long it is Full (null = not known), and the job
CREATE OR REPLACE FUNCTION reserve(
  p_id text, p_key text, p_alias text, p_task text, p_body bytea, p_digest text, p_follows text, p_scope text,
  p_queue text, p_caller text, p_delay interval, p_retention interval, p_history interval, p_safe boolean, p_on_duplicate text,
  p_max_active integer, p_per_minute integer, p_now timestamptz, OUT answer text, OUT wait interval, OUT job jobs
) LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET lock_timeout = '5s' AS $$
DECLARE
  now timestamptz;
  asked record;
  front jobs;
  v_differ boolean;
  v_key_digest text := key_digest(p_alias, p_digest);
BEGIN
  IF p_safe THEN
    PERFORM commit_safely();
  END IF;
  IF p_alias <> '' THEN
    PERFORM pg_advisory_xact_lock(lock_of(p_alias));
  END IF;
  job := hold(p_id, p_key);
  now := coalesce(p_now, clock_timestamp());

  IF job.id IS NOT NULL AND (job.expires_at IS NULL OR job.expires_at > now) THEN
    answer := CASE
      WHEN job.key <> p_key THEN 'Mismatched'
      WHEN job.state = 'queued' AND job.begun_at IS NULL THEN 'Reserved'
      ELSE 'Existing'
    END;
    RETURN;
  END IF;

  IF p_alias <> '' THEN
    asked := named(p_alias, p_digest, now);
    job := asked.job;
    IF job.id IS NOT NULL THEN
      answer := CASE WHEN asked.differs THEN 'Mismatched' ELSE 'Repeated' END;
      job := count_duplicate(job.id, p_caller, CASE
        WHEN asked.differs THEN 'refused' WHEN job.state = 'completed' THEN 'replayed' ELSE 'joined'
      END, now);
      RETURN;
    END IF;
  END IF;

  job := keeper(p_key, now);
  IF job.id IS NULL THEN
    SELECT * INTO answer, wait FROM admit(p_scope, p_max_active, p_per_minute, now);

  ELSIF job.state = 'completed' OR p_on_duplicate IN ('join', 'reject') THEN
    v_differ := differ(v_key_digest, job.digest);
    answer := CASE WHEN v_differ THEN 'Mismatched' ELSE 'Existing' END;
    job := count_duplicate(job.id, p_caller, CASE
      WHEN v_differ THEN 'refused'
      WHEN job.state = 'completed' THEN 'replayed'
      WHEN p_on_duplicate = 'reject' THEN 'rejected'
      ELSE 'joined'
    END, now);

  ELSIF p_on_duplicate = 'trail' AND job.begun_at IS NOT NULL AND job.trail_id = '' THEN
    SELECT * INTO answer, wait FROM admit(p_scope, p_max_active, p_per_minute, now);
    IF answer = 'Reserved' THEN
      UPDATE jobs SET trail_id = p_id WHERE id = job.id;
      front := job;
    END IF;

  ELSIF p_on_duplicate = 'trail' THEN
    job.id := coalesce(nullif(job.trail_id, ''), job.id);
    PERFORM amend(job.id, p_body, v_key_digest);
    job := count_duplicate(job.id, p_caller, 'amended', now);
    answer := 'Existing';

  ELSIF job.state = 'running' OR job.trail_id <> '' THEN
    job := count_duplicate(job.id, p_caller, 'joined', now);
    answer := 'Existing';

  ELSE
    PERFORM finish(job.id, 'cancelled', now, 'replaced');
    answer := 'Reserved';
  END IF;

  IF answer = 'Reserved' THEN
    job := accept(
      p_id, p_key, p_alias, p_task, p_body, p_digest, p_follows, p_scope, p_queue, p_caller, p_delay, p_retention,
      p_history,
      front, now
    );
  ELSIF p_alias <> '' AND answer = 'Existing' AND NOT (p_on_duplicate = 'reject' AND job.state <> 'completed') THEN
    PERFORM bind(p_alias, p_digest, job.id);
  END IF;
END $$;
