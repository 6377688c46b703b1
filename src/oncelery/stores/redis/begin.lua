-- begin: (absent with a body | queued | running with a lapsed lease) -> running, a higher fence
-- in: now, the submission (see accept.lua), 12 holder, 13 worker, 14 lease, 15 max_crashes, 16 hold ('1' or ''),
--     17 body (missing: none)
-- out: granted, fence, attempt, crashes, lease_until, key, task, scope, '1' if a run was cut short, an amended body,
--      steps (flat)
--      | busy | later | finished | buried | cancelled | mismatched, and the job | absent

--include shared.lua
local id, holder = ARGV[2], ARGV[12]

local function granted(job)
  local body = job.amended and call('GET', ns .. 'body:' .. id) or false
  local answer = { 'granted', job.fence, job.attempt, job.crashes or '0', job.lease_until, job.key, job.task,
    job.scope or '', job.interrupted or '', body }
  if job.steps then
    for field, value in pairs(job) do
      if field:sub(1, 5) == 'step:' then
        answer[#answer + 1] = field
        answer[#answer + 1] = value
      end
    end
  end
  return answer
end

local function grant(job, was_known)
  local name = ns .. 'job:' .. id
  job.fence = digits(math.max(job.fence + 1, now))
  job.attempt = digits((job.attempt or 0) + 1)
  job.lease_until = digits(now + ARGV[14])
  call('HSET', name, 'state', RUNNING, 'changed_at', at, 'begun_at', at, 'lease_until', job.lease_until,
    'holder', holder, 'worker', ARGV[13], 'fence', job.fence, 'attempt', job.attempt)
  if job.not_before or job.received or job.resent then
    call('HDEL', name, 'not_before', 'received', 'resent')
  end
  call('ZADD', ns .. 'due', job.lease_until, id)
  call('ZADD', ns .. 'running:' .. job.task, at, id)
  if job.scope then
    call('ZADD', ns .. 'scope:' .. job.scope, at, id)
  end
  if job.state == QUEUED then
    call('ZREM', ns .. 'queued:' .. job.task, id)
    call('ZREM', ns .. 'waiting:' .. job.queue, id)
  end
  -- Only a first, undelayed message tells when others of its queue should have come.
  if was_known and not job.begun_at and job.sent_at == job.created_at then
    call('ZADD', ns .. 'watermark', 'GT', job.sent_at, job.queue)
  end
  return granted(job)
end

local job = unfinished(id)
if job and job.state == QUEUED and not (job.behind or job.not_before or job.interrupted) then
  return grant(job, true)
end

--include reading.lua
--include ending.lua
--include changes.lua
--include accept.lua
local max_crashes, hold, body = tonumber(ARGV[15]), ARGV[16] == '1', ARGV[17]

-- A duplicate meets the job that keeps its key, or its own job under way or at its end.
local function meet(met)
  if id ~= met.id and payload_differs(met) then
    note(met, 'refused')
    return { 'mismatched', told(met) }
  end
  if met.state == COMPLETED or met.state == BURIED then
    note(met, met.state == COMPLETED and 'replayed' or 'buried')
    return { 'finished', told(met) }
  end
  note(met, 'busy')
  return { 'busy', told(met) }
end

local accepted
local old = job or known(id)
job = readable(old)

if not job then
  local last = last_of(key)
  if last and lapsed(last) and body_of(last) == '' then
    end_lapsed(last)
    last = last_of(key)
  end
  if last and keeps_key(last) then
    return meet(last)
  end
  if not body then
    return { 'absent' }
  end
  accepted = accept(old, last, 0, body)
  job = accepted
end

if job.state == COMPLETED or job.state == BURIED then
  return meet(job)
elseif job.state == CANCELLED then
  return { 'cancelled', told(job) }
elseif job.state == QUEUED then
  if job.behind or tonumber(job.not_before or now) > now then
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
return grant(job, job ~= accepted)
