-- One job, and each way it can change: what the verbs are made of. Each changes rows that its verb has locked.
--
-- Locks are taken in one order, so that no two verbs wait for each other: the alias, then the key (advisory locks, which
-- also stand for one that has no job yet; of two keys the lower number first), then rows. renew, due and prune take rows
-- only.
--
-- No verb may scan the table: a session that planned it so while the ledger was nearly empty would go on doing so when it
-- is full. Hence enable_seqscan = off.

-- How long a message may be under way, and when to publish again whatever the signs: as in stores/base.py.
CREATE OR REPLACE FUNCTION publish_grace() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '10 seconds';
CREATE OR REPLACE FUNCTION slow_check() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '1 hour';

-- How many unfinished attempts a job remembers, how many aliases it may have, and how long it answers these, at least,
-- when it has completed: as in job.py.
CREATE OR REPLACE FUNCTION past_kept() RETURNS integer LANGUAGE sql IMMUTABLE RETURN 20;
CREATE OR REPLACE FUNCTION aliases_kept() RETURNS integer LANGUAGE sql IMMUTABLE RETURN 100;
CREATE OR REPLACE FUNCTION alias_retention() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '24 hours';

-- How many duplicates the audit lists, and how long they stay counted by the hour: as in stores/base.py.
CREATE OR REPLACE FUNCTION duplicates_kept() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 100000;
CREATE OR REPLACE FUNCTION hours_kept() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '2160 hours';

-- Whether both payloads have a digest and they differ.
CREATE OR REPLACE FUNCTION differ(p_one text, p_other text) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN p_one <> '' AND p_other <> '' AND p_one <> p_other;

-- What calls under the same key are compared by: not the digest of an alias.
CREATE OR REPLACE FUNCTION key_digest(p_alias text, p_digest text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN CASE WHEN p_alias = '' THEN p_digest ELSE '' END;

-- When to look after a job; a running one not before its lease lapses.
CREATE OR REPLACE FUNCTION check_at(p_next_check timestamptz, p_lease_until timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE RETURN greatest(p_next_check, p_lease_until);

-- The number that stands for a key among advisory locks; other ledgers in this database have others.
CREATE OR REPLACE FUNCTION lock_of(p_key text) RETURNS bigint
LANGUAGE sql STABLE RETURN hashtextextended(p_key, 'jobs'::regclass::oid::bigint);

-- Commit to disk, also in a session whose default is not to wait for it (durability "safe").
CREATE OR REPLACE FUNCTION commit_safely() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;

-- Lock the key, then the job of this id, and give it; null if there is none. It may be past its history.
-- in: id, key (null = the job's own; a known job's own key holds in any case)
CREATE OR REPLACE FUNCTION hold(p_id text, p_key text) RETURNS jobs LANGUAGE plpgsql AS $$
DECLARE
  job jobs;
  v_key text;
BEGIN
  IF p_key IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(lock_of(p_key));
    SELECT * INTO job FROM jobs WHERE id = p_id AND key = p_key FOR UPDATE;
    IF FOUND THEN
      RETURN job;
    END IF;
  END IF;
  SELECT key INTO v_key FROM jobs WHERE id = p_id;
  IF FOUND THEN
    PERFORM pg_advisory_xact_lock(lock_of(v_key));
    SELECT * INTO job FROM jobs WHERE id = p_id FOR UPDATE;
  END IF;
  RETURN job;
END $$;

-- The job that a new submission under this key gets back: live, or completed and within retention; else null.
CREATE OR REPLACE FUNCTION keeper(p_key text, p_now timestamptz) RETURNS jobs LANGUAGE plpgsql AS $$
DECLARE
  job jobs;
BEGIN
  SELECT * INTO job FROM jobs WHERE key = p_key AND newest FOR UPDATE;
  -- A retention of nothing keeps no key, whatever the clock said when the job ended.
  IF job.state IN ('queued', 'running') OR job.retained_until > greatest(p_now, job.settled_at) THEN
    RETURN job;
  END IF;
  RETURN NULL;
END $$;

-- The job that a request under this alias gets back, and whether its payload is another; else null.
CREATE OR REPLACE FUNCTION named(
  p_alias text, p_digest text, p_now timestamptz, OUT job jobs, OUT differs boolean
) LANGUAGE plpgsql AS $$
DECLARE
  bound aliases;
  candidate jobs;
BEGIN
  SELECT * INTO bound FROM aliases WHERE alias = p_alias;
  SELECT * INTO candidate FROM jobs WHERE id = bound.job_id FOR UPDATE;
  IF candidate.state IN ('queued', 'running') OR (
    candidate.state = 'completed' AND candidate.expires_at > p_now
    AND candidate.settled_at + greatest(candidate.retention, alias_retention()) > p_now
  ) THEN
    job := candidate;
    differs := differ(p_digest, bound.digest);
  END IF;
END $$;

-- Make an alias a name of this job.
CREATE OR REPLACE FUNCTION bind(p_alias text, p_digest text, p_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT count(*) FROM aliases WHERE job_id = p_id) < aliases_kept() THEN
    INSERT INTO aliases VALUES (p_alias, p_digest, p_id)
    ON CONFLICT (alias) DO UPDATE SET digest = excluded.digest, job_id = excluded.job_id;
  END IF;
END $$;

-- Whether a scope has room for one more job: Reserved, and its part of the scope's time is taken; or Full, and for how
-- long that is so, if it is known. The scope's row is held until the end of the transaction.
CREATE OR REPLACE FUNCTION admit(
  p_scope text, p_max_active integer, p_per_minute integer, p_now timestamptz, OUT answer text, OUT wait interval
) LANGUAGE plpgsql AS $$
DECLARE
  v_taken timestamptz;
BEGIN
  answer := 'Reserved';
  IF p_scope = '' OR (p_max_active = 0 AND p_per_minute = 0) THEN
    RETURN;
  END IF;
  -- More than a minute ahead is only what was taken before the clock was set back.
  INSERT INTO paces AS known VALUES (p_scope, p_now)
  ON CONFLICT (scope) DO UPDATE SET taken = least(greatest(known.taken, p_now), p_now + interval '1 minute')
  RETURNING taken INTO v_taken;
  IF p_max_active > 0 AND (
    SELECT count(*) FROM jobs WHERE scope = p_scope AND scope <> '' AND state IN ('queued', 'running')
  ) >= p_max_active THEN
    answer := 'Full';
  ELSIF p_per_minute > 0 THEN
    v_taken := v_taken + interval '1 minute' / p_per_minute;
    IF v_taken > p_now + interval '1 minute' THEN
      answer := 'Full';
      wait := v_taken - p_now - interval '1 minute';
    ELSE
      UPDATE paces SET taken = v_taken WHERE scope = p_scope;
    END IF;
  END IF;
END $$;

-- (absent) -> queued. It starts from the fence its key had last; behind another job it does not become the key's newest.
-- The digest is that of the name which the caller chose: the alias, or else the key.
CREATE OR REPLACE FUNCTION accept(
  p_id text, p_key text, p_alias text, p_task text, p_body bytea, p_digest text, p_follows text, p_scope text,
  p_queue text,
  p_caller text, p_delay interval, p_retention interval, p_history interval, p_front jobs, p_now timestamptz
) RETURNS jobs LANGUAGE plpgsql AS $$
DECLARE
  job jobs;
  v_fence bigint := p_front.fence;
BEGIN
  IF p_front.id IS NULL THEN
    UPDATE jobs SET newest = false WHERE key = p_key AND newest RETURNING fence INTO v_fence;
  END IF;
  -- One past its history may still stand under this id.
  DELETE FROM jobs WHERE id = p_id;
  INSERT INTO jobs (
    id, key, newest, task, state, scope, queue, caller, digest, follows, body, created_at, changed_at, fence, behind,
    not_before, sent_at, next_check, retention, history
  ) VALUES (
    p_id, p_key, p_front.id IS NULL, p_task, 'queued', p_scope, p_queue, p_caller, key_digest(p_alias, p_digest),
    p_follows, p_body, p_now, p_now, coalesce(v_fence, 0), coalesce(p_front.id, ''),
    CASE WHEN p_delay <> '0' THEN p_now + p_delay END, p_now + p_delay,
    p_now + p_delay + slow_check(), p_retention, greatest(p_history, p_retention)
  ) RETURNING * INTO job;
  IF p_alias <> '' THEN
    PERFORM bind(p_alias, p_digest, p_id);
  END IF;
  RETURN job;
END $$;

-- Count a duplicate that is answered with this job, and note it in the audit.
CREATE OR REPLACE FUNCTION count_duplicate(p_id text, p_caller text, p_answer text, p_now timestamptz) RETURNS jobs
LANGUAGE plpgsql AS $$
DECLARE
  job jobs;
BEGIN
  UPDATE jobs SET duplicates = duplicates + 1 WHERE id = p_id RETURNING * INTO job;
  INSERT INTO duplicates (at, job_id, task, scope, caller, answer)
  VALUES (p_now, job.id, job.task, job.scope, p_caller, p_answer);
  RETURN job;
END $$;

-- Take over a newer payload, which the worker then gets from the ledger instead of the message.
CREATE OR REPLACE FUNCTION amend(p_id text, p_body bytea, p_digest text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_body IS NOT NULL THEN
    UPDATE jobs SET body = p_body, digest = p_digest, amended = true WHERE id = p_id;
  END IF;
END $$;

-- The finished steps of a job: names and values, in the same order.
CREATE OR REPLACE FUNCTION step_names(p_id text) RETURNS text[] LANGUAGE sql STABLE SET search_path FROM CURRENT
AS 'SELECT array_agg(name ORDER BY name) FROM steps WHERE job_id = p_id';
CREATE OR REPLACE FUNCTION step_values(p_id text) RETURNS bytea[] LANGUAGE sql STABLE SET search_path FROM CURRENT
AS 'SELECT array_agg(value ORDER BY name) FROM steps WHERE job_id = p_id';

-- A job's past, with the run that has ended.
CREATE OR REPLACE FUNCTION past_with_run(p_job jobs, p_ended timestamptz, p_cause text, p_error json) RETURNS json[]
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
  SELECT array_append(p_job.past[greatest(1, cardinality(p_job.past) + 2 - past_kept()):], json_build_object(
    'number', p_job.attempt, 'fence', p_job.fence, 'worker', p_job.worker, 'begun_at', p_job.begun_at,
    'ended_at', p_ended, 'cause', p_cause, 'error', p_error
  ))
$$;

-- Move the run to the past, before the job is queued, granted again, or ended.
CREATE OR REPLACE FUNCTION end_run(p_id text, p_cause text, p_error json, p_now timestamptz) RETURNS jobs
LANGUAGE plpgsql AS $$
DECLARE
  job jobs;
BEGIN
  UPDATE jobs SET
    past = past_with_run(jobs, p_now, p_cause, p_error),
    attempt = attempt - (p_cause = 'handback')::integer,
    crashes = crashes + (p_cause IN ('crash', 'lapse'))::integer,
    interrupted = interrupted OR p_cause <> 'retry',
    error = coalesce(p_error, error),
    lease_until = NULL
  WHERE id = p_id RETURNING * INTO job;
  RETURN job;
END $$;

-- (running | buried) -> queued; its message counts as sent when the delay is over.
CREATE OR REPLACE FUNCTION queue_again(p_id text, p_delay interval, p_now timestamptz) RETURNS jobs
LANGUAGE plpgsql AS $$
DECLARE
  job jobs;
BEGIN
  UPDATE jobs SET
    state = 'queued', changed_at = p_now, lease_until = NULL, resent = 0,
    not_before = CASE WHEN p_delay <> '0' THEN p_now + p_delay END,
    sent_at = p_now + p_delay, next_check = p_now + p_delay + slow_check()
  WHERE id = p_id RETURNING * INTO job;
  RETURN job;
END $$;

-- (queued | running) -> (completed | buried | cancelled), and the job that waits behind it may follow.
-- A superseded run is left no claim to what ended its job. Only a dead letter keeps its body, for a revival.
CREATE OR REPLACE FUNCTION finish(
  p_id text, p_state text, p_now timestamptz,
  p_reason text = '', p_error json = NULL, p_result bytea = NULL, p_replaced_by bytea = NULL, p_omitted text = '',
  p_superseded boolean = false
) RETURNS jobs LANGUAGE plpgsql AS $$
DECLARE
  job jobs;
BEGIN
  UPDATE jobs SET
    state = p_state, changed_at = p_now, settled_at = p_now, reason = p_reason,
    result = p_result, replaced_by = p_replaced_by, result_omitted = p_omitted,
    error = CASE WHEN p_state <> 'completed' THEN coalesce(p_error, error) END,
    retained_until = CASE WHEN p_state = 'completed' THEN p_now + retention END,
    expires_at = CASE WHEN p_state <> 'buried' THEN p_now + history END,
    body = CASE WHEN p_state = 'buried' THEN body END,
    holder = CASE WHEN p_superseded THEN '' ELSE holder END,
    lease_until = NULL, not_before = NULL, cancel_requested = false
  WHERE id = p_id RETURNING * INTO job;
  IF job.behind <> '' THEN
    UPDATE jobs SET trail_id = '' WHERE id = job.behind;
  END IF;
  IF job.trail_id <> '' THEN
    UPDATE jobs SET newest = false WHERE id = p_id;
    -- No sign is needed to publish it: whoever ended this job may have died before it did so.
    UPDATE jobs SET
      newest = true, behind = '', fence = greatest(fence, job.fence),
      changed_at = CASE WHEN not_before > p_now THEN changed_at ELSE p_now END,
      sent_at = greatest(p_now, not_before), next_check = greatest(p_now, not_before) + publish_grace()
    WHERE id = job.trail_id;
  END IF;
  RETURN job;
END $$;

-- buried -> cancelled. What went before it or came after it has long gone on.
CREATE OR REPLACE FUNCTION cancel_buried(p_id text, p_reason text, p_now timestamptz) RETURNS jobs
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE jobs SET behind = '', trail_id = '' WHERE id = p_id;
  RETURN finish(p_id, 'cancelled', p_now, p_reason, p_superseded => true);
END $$;

-- (queued | running) -> cancelled: nobody can take it over, or its cancellation is asked for.
CREATE OR REPLACE FUNCTION end_lapsed(p_job jobs, p_now timestamptz) RETURNS jobs LANGUAGE plpgsql AS $$
BEGIN
  IF p_job.state = 'running' THEN
    PERFORM end_run(p_job.id, 'lapse', NULL, p_now);
  END IF;
  RETURN finish(
    p_job.id, 'cancelled', p_now, coalesce(nullif(p_job.cancel_reason, ''), 'lapsed'), p_superseded => true
  );
END $$;

-- Take back what a clock that was ahead has written: no time of a live job is later than it can be.
CREATE OR REPLACE FUNCTION set_right(p_job jobs, p_now timestamptz) RETURNS jobs LANGUAGE plpgsql AS $$
DECLARE
  job jobs := p_job;
  v_ahead interval := job.changed_at - p_now;
BEGIN
  IF job.id IS NULL OR job.state NOT IN ('queued', 'running') THEN
    RETURN job;
  END IF;
  IF job.state = 'queued' AND v_ahead > '0' THEN
    job.changed_at := p_now;
    job.not_before := job.not_before - v_ahead;
    job.sent_at := least(job.sent_at, greatest(p_now, job.not_before));
    job.next_check := least(job.next_check, job.sent_at + slow_check());
  END IF;
  IF job.state = 'running' THEN
    job.lease_until := least(job.lease_until, p_now + job.lease_for);
    job.next_check := least(job.next_check, greatest(job.lease_until, CASE WHEN job.resent > 0 THEN p_now + slow_check() END));
  ELSIF job.resent > 0 THEN
    job.next_check := least(job.next_check, p_now + slow_check());
  END IF;
  IF (job.changed_at, job.lease_until, job.next_check) IS DISTINCT FROM
    (p_job.changed_at, p_job.lease_until, p_job.next_check) THEN
    UPDATE jobs SET
      changed_at = job.changed_at, not_before = job.not_before, sent_at = job.sent_at, lease_until = job.lease_until,
      next_check = job.next_check
    WHERE id = job.id;
  END IF;
  RETURN job;
END $$;

-- Whether the message or the worker of a job seems to be lost.
CREATE OR REPLACE FUNCTION is_missing(p_job jobs, p_empty_queues text[], p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN CASE
    WHEN p_job.state NOT IN ('queued', 'running') OR p_job.behind <> '' THEN false
    WHEN check_at(p_job.next_check, p_job.lease_until) <= p_now THEN true
    ELSE is_told_missing(p_job, p_empty_queues, p_now)
  END;
END $$;

-- Whether a body has one of these formats; one that begins with a NUL names it, up to the first newline.
CREATE OR REPLACE FUNCTION is_readable(p_body bytea, p_formats text[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN p_formats IS NULL OR CASE
    WHEN substring(p_body FROM 1 FOR 1) = '\x00'
      THEN convert_from(substring(p_body FROM 2 FOR position('\x0a'::bytea IN p_body) - 2), 'UTF8')
    ELSE ''
  END = ANY (p_formats);
END $$;

-- Whether a sign tells that the message of a job is lost.
CREATE OR REPLACE FUNCTION is_told_missing(p_job jobs, p_empty_queues text[], p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN CASE
    WHEN p_job.state = 'running' OR p_job.resent > 0 OR p_job.sent_at > p_now - publish_grace() THEN false
    WHEN p_job.queue = ANY (p_empty_queues) THEN true
    ELSE EXISTS (SELECT FROM watermarks WHERE queue = p_job.queue AND sent_at > p_job.sent_at AND sent_at <= p_now)
  END;
END $$;

-- Note when the newest job that has begun was sent. One row serves a whole queue. Who finds it locked goes on, because
-- waiting here would let only one job of the queue begin per commit. And it moves ten times a second at most, because
-- each move leaves a dead row behind, which a backup's snapshot keeps for hours. (With a clock of its own, in tests, it
-- moves each time.) A watermark that lags is moved by the next job. One later than now was written by a clock that was
-- ahead: it counts as none.
CREATE OR REPLACE FUNCTION move_watermark(p_queue text, p_sent_at timestamptz, p_now timestamptz, p_stride interval)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_sent_at timestamptz;
BEGIN
  SELECT sent_at INTO v_sent_at FROM watermarks WHERE queue = p_queue;
  IF NOT FOUND THEN
    INSERT INTO watermarks VALUES (p_queue, p_sent_at) ON CONFLICT DO NOTHING;
  ELSIF p_sent_at > v_sent_at + p_stride OR v_sent_at > p_now THEN
    PERFORM FROM watermarks WHERE queue = p_queue AND (sent_at < p_sent_at OR sent_at > p_now) FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE watermarks SET sent_at = p_sent_at WHERE queue = p_queue;
    END IF;
  END IF;
END $$;
