-- tally: how the ledger stands as a whole
-- in: now (null = server clock)
-- out: one row: states and their counts, lapsed leases, the longest delay of a check; tasks, decisions and their counts
CREATE OR REPLACE FUNCTION tally(
  p_now timestamptz, OUT states text[], OUT state_counts bigint[], OUT lapsed bigint, OUT overdue interval,
  OUT tasks text[], OUT decisions text[], OUT decision_counts bigint[]
) LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
  now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  -- Nearly all jobs are completed. They are counted in a small index, as those that expire and are not cancelled.
  SELECT array_agg(s.state), array_agg(s.count) INTO states, state_counts FROM (
    SELECT state, count(*) FROM jobs WHERE state <> 'completed' GROUP BY state
    UNION ALL
    SELECT 'completed', count(*) - (SELECT count(*) FROM jobs WHERE state = 'cancelled')
    FROM jobs WHERE expires_at IS NOT NULL
  ) AS s;

  SELECT
    count(*) FILTER (WHERE lease_until <= now),
    greatest(now - min(check_at(next_check, lease_until)) FILTER (WHERE behind = ''), '0')
  INTO lapsed, overdue
  FROM jobs WHERE state IN ('queued', 'running');

  SELECT array_agg(d.task), array_agg(d.decision), array_agg(d.count) INTO tasks, decisions, decision_counts
  FROM decisions AS d;
END $$;
