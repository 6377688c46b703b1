-- renew: running -> running, a later end of the lease, for each that is still ours
-- in: one array each of ids, holders, fences, durations; now (null = server clock)
-- out: one row of arrays, in the same order: whether it is ours, the lease's end, whether a cancel is requested, the state
--      (null: the job, or this run's grant, is not known)
--
-- The lease lasts its duration from now, whatever a clock that was ahead has written. Touches no indexed column, so that a
-- renewal leaves the indexes alone: next_check only goes down, when the sweeper had put it off beyond the new lease.
CREATE OR REPLACE FUNCTION renew(
  p_ids text[], p_holders text[], p_fences bigint[], p_durations interval[], p_now timestamptz,
  OUT ours boolean[], OUT untils timestamptz[], OUT cancels boolean[], OUT states text[]
) LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET lock_timeout = '300ms' AS $$
DECLARE
  now timestamptz := coalesce(p_now, clock_timestamp());
  lease record;
  job record;
  v_waits boolean;
BEGIN
  -- It waits for less than PostgreSQL's deadlock_timeout: whoever waits for our rows meanwhile is never the victim.
  -- A user's transaction that has settled its job, and goes on, must not let the other leases of the process lapse:
  -- if one row cannot be had, those that can be had are renewed. The lease of a locked row stands as it was.
  FOREACH v_waits IN ARRAY '{true,false}'::boolean[] LOOP
    BEGIN
      -- In one order, or two processes that renew the same leases could wait for each other.
      FOR lease IN
        SELECT * FROM unnest(p_ids, p_holders, p_fences, p_durations) WITH ORDINALITY
          AS lease (id, holder, fence, duration, place) ORDER BY id
      LOOP
        IF NOT v_waits THEN
          PERFORM FROM jobs WHERE id = lease.id FOR UPDATE SKIP LOCKED;
        END IF;
        IF v_waits OR FOUND THEN
          UPDATE jobs SET
            lease_until = now + lease.duration, lease_for = lease.duration,
            next_check = least(next_check, now + lease.duration)
          WHERE id = lease.id AND state = 'running' AND fence = lease.fence AND holder = lease.holder;
        END IF;
        SELECT *, state = 'running' AND fence = lease.fence AND holder = lease.holder AS is_ours INTO job
        FROM jobs WHERE id = lease.id AND fence >= lease.fence;
        ours[lease.place] := job.is_ours;
        untils[lease.place] := job.lease_until;
        cancels[lease.place] := job.cancel_requested;
        states[lease.place] := job.state;
      END LOOP;
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      CONTINUE;
    END;
  END LOOP;
END $$;
