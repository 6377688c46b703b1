-- revive: buried -> queued, with its counters cleared, under no lower fence than the key's last job had
--         buried -> cancelled, and another job (absent) -> queued
-- in: id, body (null = its own), the submission of another job in its place, of which that is the body (a null id: none),
--     now (null = server clock)
-- out: one row: the answer's name, and the job; of Existing the one that has its key
CREATE OR REPLACE FUNCTION revive(
  p_id text, p_body bytea, p_new_id text, p_key text, p_alias text, p_task text, p_digest text, p_follows text,
  p_scope text, p_queue text, p_caller text, p_delay interval, p_retention interval, p_history interval, p_safe boolean,
  p_now timestamptz, OUT answer text, OUT job jobs
) LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET lock_timeout = '5s' AS $$
DECLARE
  now timestamptz;
  other jobs;
  v_fence bigint;
  noted timestamptz;
BEGIN
  IF p_safe THEN
    PERFORM commit_safely();
  END IF;
  IF p_new_id IS NOT NULL THEN
    -- Both keys before any row, as another revival may go from that key to this one.
    PERFORM pg_advisory_xact_lock(number) FROM (
      SELECT DISTINCT lock_of(key) AS number FROM (SELECT key FROM jobs WHERE id = p_id UNION SELECT p_key) AS keys
      ORDER BY number
    ) AS locks;
  END IF;
  job := hold(p_id, NULL);
  now := coalesce(p_now, clock_timestamp());
  IF job.id IS NULL OR job.expires_at <= now THEN
    answer := 'Absent';
    RETURN;
  ELSIF job.state <> 'buried' THEN
    answer := 'NotBuried';
    RETURN;
  END IF;

  IF p_new_id IS NOT NULL THEN
    SELECT * INTO other FROM jobs WHERE id = p_new_id AND (expires_at IS NULL OR expires_at > now);
  END IF;
  IF other.id IS NULL THEN
    other := keeper(coalesce(p_key, job.key), now);
  END IF;
  IF other.id IS NOT NULL THEN
    job := other;
    answer := 'Existing';
    RETURN;
  END IF;

  IF p_new_id IS NOT NULL THEN
    PERFORM cancel_buried(p_id, 'revived as ' || p_new_id, now);
    job := accept(
      p_new_id, p_key, p_alias, p_task, p_body, p_digest, p_follows, p_scope, p_queue, p_caller, p_delay, p_retention,
      p_history, NULL, now
    );
    answer := 'Resubmitted';
    RETURN;
  END IF;

  PERFORM amend(p_id, p_body, job.digest);
  -- Not as JSON: PostgreSQL reads none in which an error has a NUL.
  noted := substring(job.past[cardinality(job.past)]::text FROM '"begun_at" ?: ?"([^"]*)"');
  IF job.begun_at IS DISTINCT FROM noted THEN
    UPDATE jobs SET past = past_with_run(job, job.settled_at, 'burial', job.error) WHERE id = p_id;
  END IF;
  UPDATE jobs SET newest = false WHERE key = job.key AND newest RETURNING fence INTO v_fence;
  -- Neither the job it waited behind nor the one that waited for it has to do with this new life.
  UPDATE jobs SET
    newest = true, fence = greatest(fence, v_fence), behind = '', trail_id = '', attempt = 0, crashes = 0,
    received = 0, opened_until = NULL, interrupted = false, reason = '', cancel_reason = '', error = NULL, settled_at = NULL
  WHERE id = p_id;
  job := queue_again(p_id, '0', now);
  answer := 'Revived';
END $$;
