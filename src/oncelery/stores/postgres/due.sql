-- due: queued and its message missing, or running with a lapsed lease -> the same, with its next check set
--      the same, but never to be published, or running and to be cancelled -> cancelled
-- in: limit, the broker's empty queues, the formats that the sweeper reads (null = all), now (null = server clock)     out: the jobs that have ended; then those to publish, most overdue first
--
-- Waits for no lock: what somebody else has in hand is not lost. Each row is looked at again once it is ours, because
-- another sweeper, or a worker, may have had it since. It reads all watermarks, which costs a fortune where scans are off
-- (before PostgreSQL 18): the server would compile the plan each time, for seconds. Hence jit = off.
CREATE OR REPLACE FUNCTION due(p_limit integer, p_empty_queues text[], p_formats text[], p_now timestamptz) RETURNS SETOF jobs
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
  now timestamptz := coalesce(p_now, clock_timestamp());
  -- Others go on while this is at work: what they have written meanwhile was written by no clock that was ahead.
  v_latest timestamptz := now + CASE WHEN p_now IS NULL THEN interval '1 second' ELSE '0' END;
  job jobs;
  v_merely_old boolean;
BEGIN
  FOR job IN
    SELECT * FROM jobs WHERE id = ANY (ARRAY(
      SELECT id FROM jobs WHERE changed_at > v_latest AND state = 'queued'
      UNION ALL
      SELECT id FROM jobs WHERE state = 'running' AND (
        lease_until > v_latest + lease_for OR (resent > 0 AND next_check > v_latest + slow_check())
      )
      UNION ALL
      SELECT id FROM jobs WHERE state = 'queued' AND resent > 0 AND next_check > v_latest + slow_check()
    )) LIMIT 10 * p_limit FOR UPDATE SKIP LOCKED
  LOOP
    PERFORM set_right(job, now);
  END LOOP;

  FOR job IN
    SELECT * FROM jobs WHERE id = ANY (ARRAY(
      SELECT id FROM jobs WHERE state = 'running' AND lease_until <= now AND (cancel_requested OR body = '')
      UNION ALL
      SELECT id FROM jobs WHERE state = 'queued' AND body = ''
    )) AND is_missing(jobs, p_empty_queues, now) FOR UPDATE SKIP LOCKED
  LOOP
    -- First the row, then the key is the wrong order; it is safe because this does not wait.
    IF pg_try_advisory_xact_lock(lock_of(job.key)) THEN
      RETURN NEXT end_lapsed(job, now);
    END IF;
  END LOOP;

  FOR job IN
    -- Each kind by its own index, and past what other sweepers have in hand: they all look at the same end of it.
    WITH lapsed AS (
      SELECT id FROM jobs WHERE state = 'running' AND check_at(next_check, lease_until) <= now AND is_readable(body, p_formats)
      ORDER BY check_at(next_check, lease_until) LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), overdue AS (
      SELECT id FROM jobs WHERE state = 'queued' AND behind = '' AND next_check <= now AND is_readable(body, p_formats)
      ORDER BY next_check LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), sign AS (
      SELECT queue, sent_at AS before FROM watermarks WHERE sent_at <= now
      UNION ALL
      SELECT queue, 'infinity' FROM unnest(p_empty_queues) AS queue
    ), missing AS (
      SELECT waiting.id FROM sign CROSS JOIN LATERAL (
        SELECT id FROM jobs
        WHERE state = 'queued' AND behind = '' AND resent = 0
          AND queue = sign.queue AND sent_at < sign.before AND sent_at <= now - publish_grace()
          AND is_readable(body, p_formats)
        ORDER BY sent_at LIMIT p_limit FOR UPDATE SKIP LOCKED
      ) AS waiting
    )
    SELECT * FROM jobs
    -- An array, of which the planner expects few, or it would read the whole table.
    WHERE id = ANY (ARRAY(SELECT id FROM lapsed UNION SELECT id FROM overdue UNION SELECT id FROM missing))
      AND is_missing(jobs, p_empty_queues, now) AND body IS DISTINCT FROM '' AND NOT cancel_requested
    ORDER BY check_at(next_check, lease_until) LIMIT p_limit FOR UPDATE
  LOOP
    -- As a backlog is: soon again would be a copy too many, and signs go on to tell.
    v_merely_old := job.state = 'queued' AND job.resent = 0 AND job.sent_at <= now - slow_check()
      AND NOT is_told_missing(job, p_empty_queues, now);
    UPDATE jobs SET
      resent = CASE WHEN v_merely_old THEN 0 ELSE resent + 1 END,
      next_check = now + CASE WHEN v_merely_old THEN slow_check()
        ELSE least(publish_grace() * 2 ^ least(resent + 1, 30), slow_check()) END
    WHERE id = job.id RETURNING * INTO job;
    RETURN NEXT job;
  END LOOP;
END $$;
