-- count: add to the counters by task and decision
-- in: one array each of tasks, decisions, counts; now (not used)     out: nothing
CREATE OR REPLACE FUNCTION count(p_tasks text[], p_decisions text[], p_counts bigint[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '5s' AS $$
BEGIN
  -- In one order, or two processes that count at once would wait for each other.
  INSERT INTO decisions AS known (task, decision, count)
  SELECT * FROM unnest(p_tasks, p_decisions, p_counts) AS added (task, decision, count) ORDER BY added.task, added.decision
  ON CONFLICT (task, decision) DO UPDATE SET count = known.count + excluded.count;
END $$;
