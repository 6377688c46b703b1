-- begin: (absent with a body | queued | running with a lapsed lease) -> running, a higher fence
-- in: now, the submission, 12 holder, 13 worker, 14 lease, 15 max_crashes, 16 hold ('1' or ''), 17 body (missing: none)
-- out: granted, fence, attempt, crashes, lease_until, id, key, task, scope, steps (flat), an amended body
--      | busy | later | finished | cancelled | mismatched, and the job | absent

local holder, lease, max_crashes, hold, body = ARGV[12], tonumber(ARGV[14]), tonumber(ARGV[15]), ARGV[16] == '1', ARGV[17]

-- A duplicate meets the job that keeps its key, or its own job in the middle or at the end.
local function meet(job)
  if id ~= job.id and payload_differs(job) then
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

local function granted(job)
  local steps = {}
  for field, value in pairs(job) do
    if field:sub(1, 5) == 'step:' then
      steps[#steps + 1] = field:sub(6)
      steps[#steps + 1] = value
    end
  end
  return { 'granted', job.fence, job.attempt, job.crashes or '0', job.lease_until, job.id, job.key, job.task,
    job.scope or '', steps, job.amended and job.body }
end

local job = readable(known(id))

if not job then
  local last = last_of(key)
  if last and lapsed(last) and last.body == '' then
    end_lapsed(last)
    last = last_of(key)
  end
  if last and keeps_key(last) then
    return meet(last)
  end
  if not body then
    return { 'absent' }
  end
  job = accept(last and last.fence or '0', 0, body)
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
if job.crashed and (crashes > max_crashes or hold) then
  update(job, { holder = false })
  bury(job, crashes > max_crashes and 'crashed' or 'outcome unknown')
  return { 'finished', told(job) }
end

if not job.begun_at then
  local mark = call('HGET', ns .. 'watermark', job.queue)
  if not mark or tonumber(mark) < tonumber(job.sent_at) then
    call('HSET', ns .. 'watermark', job.queue, job.sent_at)
  end
end
local before = job.state
update(job, {
  state = RUNNING,
  changed_at = now,
  begun_at = now,
  lease_until = now + lease,
  not_before = false,
  holder = holder,
  worker = ARGV[13],
  fence = math.max(job.fence + 1, now),
  attempt = (job.attempt or 0) + 1,
  received = false,
  resent = false,
  crashed = false,
})
call('ZADD', ns .. 'due', job.lease_until, job.id)
list(job, before)
call('ZREM', ns .. 'waiting:' .. job.queue, job.id)
return granted(job)
