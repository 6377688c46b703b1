-- due: queued and its message missing, or running with a lapsed lease -> the same, with its next check set
--      running with a lapsed lease, to be cancelled or never to be published -> cancelled
-- in: limit, the broker's empty queues, now (null = server clock)     out: the jobs to publish, most overdue first
--
-- Waits for no lock: what somebody else has in hand is not lost.
CREATE OR REPLACE FUNCTION due(p_limit integer, p_empty_queues text[], p_now timestamptz) RETURNS SETOF jobs
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  now timestamptz := coalesce(p_now, clock_timestamp());
  job jobs;
BEGIN
  FOR job IN
    SELECT * FROM jobs
    WHERE state = 'running' AND check_at(next_check, lease_until) <= now AND (cancel_requested OR body = '')
    FOR UPDATE SKIP LOCKED
  LOOP
    -- Row first, key second is the wrong order; it is safe because this does not wait.
    IF pg_try_advisory_xact_lock(lock_of(job.key)) THEN
      PERFORM end_lapsed(job.id, now);
    END IF;
  END LOOP;

  FOR job IN
    WITH overdue AS (
      (
        SELECT id FROM jobs WHERE state = 'running' AND check_at(next_check, lease_until) <= now
        ORDER BY check_at(next_check, lease_until) LIMIT p_limit
      ) UNION ALL (
        SELECT id FROM jobs WHERE state = 'queued' AND behind = '' AND next_check <= now
        ORDER BY next_check LIMIT p_limit
      )
    ), sign AS (
      SELECT queue, sent_at AS before FROM watermarks
      UNION ALL
      SELECT queue, 'infinity' FROM unnest(p_empty_queues) AS queue
    ), missing AS (
      SELECT waiting.id FROM sign CROSS JOIN LATERAL (
        SELECT id FROM jobs
        WHERE state = 'queued' AND behind = '' AND resent = 0
          AND queue = sign.queue AND sent_at < sign.before AND sent_at <= now - publish_grace()
        ORDER BY sent_at LIMIT p_limit
      ) AS waiting
    )
    SELECT * FROM jobs
    WHERE id IN (SELECT id FROM overdue UNION SELECT id FROM missing)
      -- Looked at again once the row is ours: another sweeper, or a worker, may have had it since.
      AND CASE state
        WHEN 'running' THEN check_at(next_check, lease_until) <= now AND NOT cancel_requested AND body IS DISTINCT FROM ''
        WHEN 'queued' THEN behind = '' AND (next_check <= now OR (resent = 0 AND sent_at <= now - publish_grace()))
        ELSE false
      END
    ORDER BY check_at(next_check, lease_until) LIMIT p_limit FOR UPDATE SKIP LOCKED
  LOOP
    UPDATE jobs SET
      resent = resent + 1,
      next_check = now + least(publish_grace() * 2 ^ least(resent + 1, 30), slow_check())
    WHERE id = job.id RETURNING * INTO job;
    RETURN NEXT job;
  END LOOP;
END $$;
