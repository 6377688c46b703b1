-- prune: (completed | cancelled) past its history -> (absent); old audit -> (absent)
-- in: limit, now (null = server clock)     out: one row: how many jobs went
CREATE OR REPLACE FUNCTION prune(p_limit integer, p_now timestamptz, OUT pruned bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
  now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  DELETE FROM jobs WHERE id IN (
    SELECT id FROM jobs WHERE expires_at <= now ORDER BY expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED
  );
  GET DIAGNOSTICS pruned = ROW_COUNT;
  -- More at a time than jobs, because more may come; and in one order, or two who prune would wait for each other.
  WITH old AS (
    DELETE FROM duplicates WHERE place IN (
      SELECT place FROM duplicates WHERE place <= (SELECT max(place) FROM duplicates) - duplicates_kept()
      ORDER BY place LIMIT 10 * p_limit FOR UPDATE SKIP LOCKED
    ) RETURNING at, task, scope, answer
  )
  INSERT INTO duplicate_hours AS known (hour, task, scope, answer, count)
  SELECT date_trunc('hour', at, 'UTC') AS of_hour, task, scope, answer, count(*)
  FROM old GROUP BY of_hour, task, scope, answer ORDER BY scope, of_hour, task, answer
  ON CONFLICT (scope, hour, task, answer) DO UPDATE SET count = known.count + excluded.count;
  DELETE FROM duplicate_hours WHERE (scope, hour, task, answer) IN (
    SELECT scope, hour, task, answer FROM duplicate_hours
    WHERE hour < date_trunc('hour', now - hours_kept(), 'UTC') ORDER BY hour LIMIT 10 * p_limit FOR UPDATE SKIP LOCKED
  );
  DELETE FROM paces WHERE scope IN (SELECT scope FROM paces WHERE taken <= now LIMIT p_limit FOR UPDATE SKIP LOCKED);
END $$;
