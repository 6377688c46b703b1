-- find: readable jobs, newest change first
-- in: states (empty = any), task, scope ('' = any), since, until (null = any), the last page's end (null = the first
--     page): when it changed and its id; limit, now (null = server clock)
-- out: the jobs
--
-- Planned for the values at hand: which of the indexes serves depends on which filters are given.
CREATE OR REPLACE FUNCTION find(
  p_states text[], p_task text, p_scope text, p_since timestamptz, p_until timestamptz,
  p_end_at timestamptz, p_end_id text, p_limit integer, p_now timestamptz
) RETURNS SETOF jobs
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
DECLARE
  now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  RETURN QUERY
  SELECT * FROM jobs
  WHERE (expires_at IS NULL OR expires_at > now)
    AND (p_states = '{}' OR state = ANY (p_states))
    AND (p_task = '' OR task = p_task)
    AND (p_scope = '' OR scope = p_scope)
    AND (p_since IS NULL OR changed_at >= p_since)
    AND (p_until IS NULL OR changed_at < p_until)
    AND (p_end_at IS NULL OR (changed_at, id) < (p_end_at, p_end_id))
  ORDER BY changed_at DESC, id DESC LIMIT p_limit;
END $$;
