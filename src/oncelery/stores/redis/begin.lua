-- begin: (absent with a body | queued | running with a lapsed lease) -> running, a higher fence
-- in: now, the submission (see parts/accept.lua; in it, 7 max_crashes, 8 hold), 6 holder, 7 worker, 8 lease,
--     9 body (missing: none)
-- out: the fence alone: a first grant under the key that was given, from the time that is its fence
--      | granted, fence, key, kind, attempt, crashes, lease_until, scope, '1' if a run was cut short, an amended body,
--        steps (flat)
--      | busy | later | finished | buried | cancelled | mismatched, and the job | absent

--include parts/shared.lua
local id, key, holder, worker, lease = ARGV[2], ARGV[3], ARGV[6], ARGV[7], ARGV[8]

-- A watermark later than now was written by a clock that was ahead: it counts as none.
local function raise_watermark(kind, sent_at)
  if tonumber(sent_at) <= now and call('ZADD', ns .. 'kinds', 'GT', 'CH', sent_at, kind) == 0
    and tonumber(call('ZSCORE', ns .. 'kinds', kind)) > now then
    call('ZADD', ns .. 'kinds', sent_at, kind)
  end
end

-- The common case: a first run, to whose job nothing has happened before.
local hash = ns .. 'job:' .. id
local fields = call('HMGET', hash, 'plain', 'state', 'fence', 'key', 'kind', 'created_at')
if fields[1] and fields[2] == QUEUED and fields[4] == key and tonumber(fields[3]) < now then
  local lease_until = now + lease
  call('HSET', hash, 'state', RUNNING, 'fence', at, 'lease_until', digits(lease_until),
    'lease_for', lease, 'holder', holder, 'worker', worker)
  call('ZADD', ns .. 'live:' .. fields[5], digits(RUNS + lease_until), id)
  raise_watermark(fields[5], fields[6])
  return at
end

--include parts/reading.lua
--include parts/ending.lua
--include parts/changes.lua
--include parts/accept.lua
--include parts/duplicate.lua
--include parts/alias.lua
local max_crashes, hold, body = offer[7], offer[8], ARGV[9]

local function grant(job)
  -- Only a first, undelayed message tells when others of its queue should have come.
  if not job.begun_at and job.sent_at == job.created_at then
    raise_watermark(job.kind, job.sent_at)
  end
  move(job, {
    state = RUNNING,
    changed_at = at,
    begun_at = at,
    lease_until = now + lease,
    lease_for = lease,
    not_before = false,
    held = false,
    holder = holder,
    worker = worker,
    fence = math.max(job.fence + 1, now),
    attempt = (job.attempt or 0) + 1,
    received = false,
    resent = false,
  }, now + lease)
end

local function granted(job)
  local answer = { 'granted', job.fence, job.key, job.kind, job.attempt, job.crashes or '0', job.lease_until,
    job.scope or '', job.interrupted or '', job.amended and body_of(job) or false }
  for field, value in pairs(job) do
    if field:sub(1, 5) == 'step:' then
      answer[#answer + 1] = field
      answer[#answer + 1] = value
    end
  end
  return answer
end

-- A duplicate meets the job that keeps its alias or its key, or its own job under way or at its end.
local function meet(job, differs)
  if differs then
    note(job, 'refused')
    return { 'mismatched', told(job) }
  end
  if job.state == COMPLETED or job.state == BURIED then
    note(job, job.state == COMPLETED and 'replayed' or 'buried')
    return { 'finished', told(job) }
  end
  note(job, 'busy')
  return { 'busy', told(job) }
end

local old = known(id)
local job = readable(old)
if job and live(job) then
  set_right(job)
end

if not job then
  local asked, differs = named()
  if asked then
    return meet(asked, differs)
  end
  local last = last_of(key)
  if last and live(last) then
    set_right(last)
  end
  if last and lapsed(last) and body_of(last) == '' then
    end_lapsed(last)
    last = last_of(key)
  end
  if last and keeps_key(last) then
    return meet(last, payload_differs(last))
  end
  if not body then
    return { 'absent' }
  end
  delay = 0
  accept(last, old, body)
  job = unfinished(id)
  -- Nobody has sent it, so it tells nothing of its queue.
  job.sent_at = ''
end

if job.state == COMPLETED or job.state == BURIED then
  return meet(job)
elseif job.state == CANCELLED then
  return { 'cancelled', told(job) }
elseif job.state == QUEUED then
  if job.behind or tonumber(job.not_before or now) > now then
    if job.received then
      update(job, { received = false })
    end
    return { 'later', told(job) }
  end
elseif job.holder == holder then
  return granted(job)
elseif not lapsed(job) then
  return meet(job)
elseif job.cancel_requested then
  end_lapsed(job)
  return { 'cancelled', told(job) }
else
  end_run(job, 'lapse')
end

local crashes = tonumber(job.crashes or 0)
if crashes > max_crashes or (job.interrupted and hold) then
  update(job, { holder = false })
  bury(job, crashes > max_crashes and 'crashed' or 'outcome unknown')
  return { 'buried', told(job) }
end
grant(job)
return granted(job)
