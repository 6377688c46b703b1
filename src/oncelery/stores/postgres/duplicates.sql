-- duplicates: what duplicates were answered, newest first
-- in: task, scope ('' = any), the last page's end (null = the first page), limit, now (not used)
-- out: a row for each: its place, then the fields
CREATE OR REPLACE FUNCTION duplicates(
  p_task text, p_scope text, p_end bigint, p_limit integer, p_now timestamptz
) RETURNS SETOF duplicates
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
BEGIN
  RETURN QUERY
  SELECT * FROM duplicates
  WHERE (p_task = '' OR task = p_task) AND (p_scope = '' OR scope = p_scope) AND (p_end IS NULL OR place < p_end)
  ORDER BY place DESC LIMIT p_limit;
END $$;
