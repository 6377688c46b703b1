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
  DELETE FROM duplicates WHERE place IN (
    SELECT place FROM duplicates WHERE at < now - audit_kept() ORDER BY at LIMIT p_limit FOR UPDATE SKIP LOCKED
  );
  DELETE FROM paces WHERE scope IN (SELECT scope FROM paces WHERE taken <= now LIMIT p_limit FOR UPDATE SKIP LOCKED);
END $$;
