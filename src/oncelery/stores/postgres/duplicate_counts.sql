-- duplicate_counts: how many duplicates were answered, by hour, task, scope and answer; oldest first
-- in: since (counted from its hour on), task, scope ('' = any), now (null = server clock)     out: a row for each
CREATE OR REPLACE FUNCTION duplicate_counts(p_since timestamptz, p_task text, p_scope text, p_now timestamptz)
RETURNS TABLE (hour timestamptz, task text, scope text, answer text, count bigint)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
DECLARE
  v_since timestamptz := date_trunc('hour', greatest(p_since, coalesce(p_now, clock_timestamp()) - hours_kept()), 'UTC');
BEGIN
  -- Those that are listed one by one, and those that prune has added up.
  RETURN QUERY
  SELECT c.hour, c.task, c.scope, c.answer, sum(c.count)::bigint FROM (
    SELECT date_trunc('hour', d.at, 'UTC') AS hour, d.task, d.scope, d.answer, 1 AS count FROM duplicates AS d
    WHERE d.at >= v_since AND (p_task = '' OR d.task = p_task) AND (p_scope = '' OR d.scope = p_scope)
    UNION ALL
    SELECT h.hour, h.task, h.scope, h.answer, h.count FROM duplicate_hours AS h
    WHERE h.hour >= v_since AND (p_task = '' OR h.task = p_task) AND (p_scope = '' OR h.scope = p_scope)
  ) AS c GROUP BY c.hour, c.task, c.scope, c.answer ORDER BY c.hour, c.task, c.scope, c.answer;
END $$;
