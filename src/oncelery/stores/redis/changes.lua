-- How a job changes. Each function keeps the job's table and all its keys in step; nobody else writes them.

-- `false` takes a field away.
local function update(job, changes)
  local set, gone = {}, {}
  for field, value in pairs(changes) do
    if type(value) == 'number' then
      value = digits(value)
    end
    if value then
      set[#set + 1] = field
      set[#set + 1] = value
    elseif job[field] then
      gone[#gone + 1] = field
    end
    job[field] = value or nil
  end
  if #set > 0 then
    call('HSET', ns .. 'job:' .. job.id, unpack(set))
  end
  if #gone > 0 then
    call('HDEL', ns .. 'job:' .. job.id, unpack(gone))
  end
end

-- Put a job that has just changed among those of its state, and take it from where it was before.
local function list(job, before)
  call('ZADD', ns .. job.state .. ':' .. job.task, job.changed_at, job.id)
  if job.scope then
    call('ZADD', ns .. 'scope:' .. job.scope, job.changed_at, job.id)
  end
  if before and before ~= job.state then
    call('ZREM', ns .. before .. ':' .. job.task, job.id)
  end
end

local function keep_key(job, place)
  local packed = pack(job.key)
  call('HSET', bucket('keys', packed), packed, place)
end

-- Its message counts as sent at `sent_at`; without a sign that it is lost, it is looked after at `check`.
local function await(job, check)
  call('ZADD', ns .. 'due', check, job.id)
  call('ZADD', ns .. 'waiting:' .. job.queue, job.sent_at, job.id)
end

local function unwatch(job)
  call('ZREM', ns .. 'due', job.id)
  call('ZREM', ns .. 'waiting:' .. job.queue, job.id)
end

local function queue(job, delay, changes)
  local before = job.state
  changes.state = QUEUED
  changes.changed_at = now
  changes.sent_at = now + delay
  changes.not_before = delay > 0 and now + delay
  changes.lease_until = false
  changes.resent = false
  update(job, changes)
  await(job, job.sent_at + SLOW_CHECK)
  list(job, before)
end

-- The run of a job goes to its past, before the job is queued, granted again or ended.
local function end_run(job, cause, failure)
  local crashed = cause == 'crash' or cause == 'lapse'
  local past = job.past and cjson.decode(job.past) or {}
  past[#past + 1] = { job.attempt, job.fence, job.worker or '', job.begun_at, digits(now), cause, failure or '' }
  if #past > PAST_KEPT then
    table.remove(past, 1)
  end
  update(job, {
    past = cjson.encode(past),
    attempt = job.attempt - (cause == 'handback' and 1 or 0),
    crashes = (job.crashes or 0) + (crashed and 1 or 0),
    crashed = crashed and '1',
    error = failure or job.error or false,
    lease_until = false,
  })
end

-- The job has ended: whom it waited behind need not mind it, and who waits behind it may begin.
local function let_follow(job)
  local front = job.behind and unfinished(job.behind)
  if front then
    update(front, { trail_id = false })
  end
  local trail = job.trail_id and unfinished(job.trail_id)
  if trail then
    local sent_at = math.max(now, tonumber(trail.not_before or now))
    local fence = math.max(tonumber(trail.fence), tonumber(job.fence))
    update(trail, { behind = false, sent_at = sent_at, fence = fence })
    -- No sign is needed: whoever ended the job in front may have died before it published this one.
    await(trail, sent_at + PUBLISH_GRACE)
    keep_key(trail, '@' .. trail.id)
  end
end

local function bury(job, reason, failure)
  local before = job.state
  update(job, {
    state = BURIED,
    reason = reason,
    error = failure or job.error or false,
    changed_at = now,
    settled_at = now,
    lease_until = false,
    not_before = false,
    cancel_requested = false,
  })
  list(job, before)
  unwatch(job)
  let_follow(job)
end

local function number_of(kind)
  local n = call('HGET', ns .. 'kinds', kind)
  if not n then
    n = digits(call('HINCRBY', ns .. 'kinds', 'last', 1))
    call('HSET', ns .. 'kinds', n, kind, kind, n)
  end
  return n
end

-- What few jobs have is packed into one field, which is empty for all others.
local SELDOM = {
  scope = true, caller = true, digest = true, crashes = true, past = true, behind = true, trail_id = true,
  reason = true, error = true, progress = true, settled_at = true,
}

local function seldom(job)
  local packed, any = {}, false
  for field, value in pairs(job) do
    if SELDOM[field] or field:sub(1, 5) == 'step:' or (field == 'attempt' and value ~= '1') then
      packed[field] = value
      any = true
    end
  end
  return any and cmsgpack.pack(packed) or ''
end

local function add_entry(stream, stamp, job)
  local begun = job.begun_at and digits(stamp - job.begun_at) or ''
  local fence = job.begun_at and digits(job.fence - job.begun_at) or job.fence
  return redis.pcall('XADD', stream, digits(stamp) .. '-0',
    'id', pack(job.id), 'key', pack(job.key), 'created', digits(stamp - job.created_at), 'begun', begun,
    'fence', fence, 'holder', pack(job.holder or ''), 'worker', job.worker or '', 'result', job.result or '',
    'more', seldom(job))
end

-- Completed or cancelled: from the hash of its own to a line in the stream of its kind.
local function finish(job, state)
  local before = job.state
  local n = number_of(cjson.encode({ state, job.task, job.queue, job.retention, job.history }))
  local stream, stamp = ns .. 'finished:' .. n, now
  job.settled_at = nil
  local added = add_entry(stream, stamp, job)
  if added.err then
    if not added.err:find('equal or smaller') then
      error(added.err)
    end
    -- Another ended in this very microsecond, or the clock was set back: after the last one, with its own time.
    local about = call('XINFO', 'STREAM', stream)
    for i = 1, #about, 2 do
      if about[i] == 'last-generated-id' then
        stamp = about[i + 1]:match('^%d+') + 1
      end
    end
    job.settled_at = digits(now)
    added = add_entry(stream, stamp, job)
  end
  local id = pack(job.id)
  job.place = n .. string.format('%016.0f', stamp)
  call('HSET', bucket('ids', id), id, job.place)
  if not job.behind then
    keep_key(job, job.place)
  end
  if job.duplicates then
    call('HSET', ns .. 'repeats', job.place, job.duplicates)
  end
  if job.scope then
    call('ZADD', ns .. 'scope:' .. job.scope, now, job.id)
  end
  call('DEL', ns .. 'job:' .. job.id)
  call('ZREM', ns .. before .. ':' .. job.task, job.id)
  unwatch(job)
  let_follow(job)
  job.state, job.changed_at, job.settled_at = state, now, now
  job.body, job.lease_until, job.not_before, job.cancel_requested = nil, nil, nil, nil
end

-- End a lapsed run that nobody can take over, or whose cancellation is asked for.
local function end_lapsed(job)
  end_run(job, 'lapse')
  job.holder = nil
  job.reason = job.cancel_reason or 'lapsed'
  finish(job, CANCELLED)
end

-- Delete a finished job. What else has come to its id, key or scope stays.
local function forget(job)
  local n, stamp = job.place:sub(1, -17), job.place:sub(-16)
  local id, key = pack(job.id), pack(job.key)
  local ids, keys = bucket('ids', id), bucket('keys', key)
  call('XDEL', ns .. 'finished:' .. n, stamp .. '-0')
  call('HDEL', ns .. 'repeats', job.place)
  if call('HGET', keys, key) == job.place then
    call('HDEL', keys, key)
  end
  if call('HGET', ids, id) == job.place then
    call('HDEL', ids, id)
    if job.scope then
      call('ZREM', ns .. 'scope:' .. job.scope, job.id)
    end
  end
end
