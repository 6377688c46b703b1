-- duplicate_counts: how many duplicates were answered, by hour, task, scope and answer; oldest first
-- in: since (counted from its hour on), now (not used)     out: a row for each
CREATE OR REPLACE FUNCTION duplicate_counts(p_since timestamptz, p_now timestamptz)
RETURNS TABLE (hour timestamptz, task text, scope text, answer text, count bigint)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
  RETURN QUERY
  SELECT date_trunc('hour', d.at, 'UTC') AS hour_of, d.task, d.scope, d.answer, count(*)
  FROM duplicates AS d WHERE d.at >= date_trunc('hour', p_since, 'UTC')
  GROUP BY hour_of, d.task, d.scope, d.answer ORDER BY hour_of, d.task, d.scope, d.answer;
END $$;
