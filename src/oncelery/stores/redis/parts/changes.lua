-- How a job changes in other ways than by ending for good. Each function keeps the table and all keys in step.

-- `false` takes a field away. What is changed by this is not plain any more, and has all the fields it lacked.
function update(job, changes)
  local set, gone = {}, { 'plain' }
  for field, value in pairs(job.implied or {}) do
    set[#set + 1] = field
    set[#set + 1] = value
  end
  job.implied = nil
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
  call('HDEL', ns .. 'job:' .. job.id, unpack(gone))
end

-- Put a job among those of its state, to be checked at that time.
function list(job, check)
  local kind, id = job.kind, job.id
  if job.state == RUNNING then
    call('ZADD', ns .. 'live:' .. kind, digits(RUNS + check), id)
  elseif job.state == BURIED then
    call('ZADD', ns .. 'buried:' .. kind, job.changed_at, id)
  elseif not job.held then
    call('ZADD', ns .. 'live:' .. kind, job.sent_at, id)
  else
    call('ZADD', ns .. 'held:' .. kind, job.changed_at, id)
    if job.resent then
      call('ZADD', ns .. 'again', digits(check), id)
      call('ZREM', ns .. 'due', id)
      call('ZREM', ns .. 'delayed:' .. kind, id)
    elseif not job.behind then
      call('ZADD', ns .. 'due', digits(check), id)
      call('ZADD', ns .. 'delayed:' .. kind, job.sent_at, id)
    end
  end
  if job.scope then
    call('ZADD', ns .. 'scope:' .. job.scope, job.changed_at, id)
    if job.state == BURIED then
      call('ZADD', ns .. 'letters:' .. job.scope, job.changed_at, id)
      call('SREM', ns .. 'active:' .. job.scope, id)
    else
      call('SADD', ns .. 'active:' .. job.scope, id)
    end
  end
end

-- The list in which a job of that state is.
local function list_of(state, held)
  return held and 'held' or state == BURIED and BURIED or 'live'
end

-- Take a job from where it was as long as it was in that state.
function unlist(job, state, held)
  call('ZREM', ns .. list_of(state, held) .. ':' .. job.kind, job.id)
  if state == BURIED and job.scope then
    call('ZREM', ns .. 'letters:' .. job.scope, job.id)
  end
  if held then
    call('ZREM', ns .. 'due', job.id)
    call('ZREM', ns .. 'again', job.id)
    call('ZREM', ns .. 'delayed:' .. job.kind, job.id)
  end
end

local function move(job, changes, check)
  local state, held = job.state, job.held
  update(job, changes)
  list(job, check)
  if list_of(state, held) ~= list_of(job.state, job.held) then
    unlist(job, state, held)
  end
end

-- Take back what a clock that was ahead has written: no time of a live job is later than it can be.
local function set_right(job)
  local changes, ahead = {}, job.changed_at - now
  if job.state == QUEUED and ahead > 0 then
    local not_before = job.not_before and job.not_before - ahead
    changes.changed_at, changes.not_before = at, not_before
    changes.sent_at = math.min(job.sent_at, math.max(now, not_before or now))
  end
  if job.state == RUNNING and job.lease_until - job.lease_for > now then
    changes.lease_until = now + job.lease_for
  end
  if next(changes) then
    update(job, changes)
  end
  -- When it is to be checked, if an index says so, and when at the latest it may be.
  local check, latest
  if job.state == RUNNING then
    check = call('ZSCORE', ns .. 'live:' .. job.kind, job.id) - RUNS
    latest = math.max(job.lease_until, job.resent and now + SLOW_CHECK or 0)
  elseif job.held and not job.behind then
    check = tonumber(call('ZSCORE', ns .. (job.resent and 'again' or 'due'), job.id))
    latest = job.resent and now + SLOW_CHECK or ahead > 0 and job.sent_at + SLOW_CHECK or check
  end
  if next(changes) or (check and check > latest) then
    list(job, check and math.min(check, latest))
  end
end

-- Back to queued; its message counts as sent when the delay is over.
local function queue(job, delay)
  move(job, {
    state = QUEUED,
    changed_at = at,
    sent_at = now + delay,
    not_before = delay > 0 and now + delay,
    held = delay > 0 and '1',
    lease_until = false,
    resent = false,
  }, now + delay + SLOW_CHECK)
end

local function past_of(job)
  return job.past and cjson.decode(job.past) or {}
end

-- The job's past, with the run that has ended.
local function past_with_run(job, ended_at, cause, failure)
  local past = past_of(job)
  past[#past + 1] = { job.attempt, job.fence, job.worker or '', job.begun_at, ended_at, cause, failure or '' }
  if #past > PAST_KEPT then
    table.remove(past, 1)
  end
  return cjson.encode(past)
end

-- The run goes to the job's past, before the job is queued, granted again or ended.
local function end_run(job, cause, failure)
  local crashed = cause == 'crash' or cause == 'lapse'
  update(job, {
    past = past_with_run(job, at, cause, failure),
    attempt = job.attempt - (cause == 'handback' and 1 or 0),
    crashes = crashed and (job.crashes or 0) + 1 or job.crashes,
    interrupted = cause ~= 'retry' and '1' or job.interrupted,
    error = failure or job.error or false,
    lease_until = false,
  })
end

-- The job has ended: the one it waited behind need not mind it, and the one that waits behind it may begin.
function let_follow(job)
  local front = job.behind and unfinished(job.behind)
  if front then
    update(front, { trail_id = false })
  end
  local trail = job.trail_id and unfinished(job.trail_id)
  if trail then
    local sent_at = math.max(now, tonumber(trail.not_before or now))
    local fence = math.max(tonumber(trail.fence), tonumber(job.fence))
    local changed_at = sent_at > now and trail.changed_at or at
    update(trail, { behind = false, sent_at = sent_at, changed_at = changed_at, fence = fence })
    -- No sign is needed: whoever ended the job in front may have died before it published this one.
    list(trail, sent_at + PUBLISH_GRACE)
    call('HSET', bucket('keys', trail.key), trail.key, trail.id)
  end
end

local function bury(job, reason, failure)
  move(job, {
    state = BURIED,
    reason = reason,
    error = failure or job.error or false,
    changed_at = at,
    settled_at = at,
    held = false,
    lease_until = false,
    not_before = false,
    cancel_requested = false,
  })
  let_follow(job)
end

-- End a dead letter. No run has a claim to it, and what went before it or came after it has long gone on.
local function cancel_buried(job, reason)
  job.holder, job.behind, job.trail_id = nil, nil, nil
  job.reason, job.settled_at = reason, nil
  finish(job, CANCELLED)
end

-- End a job that nobody can take over, or whose cancellation is asked for.
local function end_lapsed(job)
  if job.state == RUNNING then
    end_run(job, 'lapse')
  end
  job.holder = nil
  job.reason = job.cancel_reason or 'lapsed'
  finish(job, CANCELLED)
end

-- What few jobs have; nothing for all others.
function seldom(job)
  local more = {
    scope = job.scope, digest = job.digest, follows = job.follows, crashes = job.crashes, past = job.past,
    behind = job.behind, trail_id = job.trail_id, reason = job.reason, error = job.error, progress = job.progress,
    settled_at = job.settled_at, attempt = job.attempt ~= '1' and job.attempt or nil,
    fence = job.fence ~= job.begun_at and job.fence or nil,
    replaced_by = job.replaced_by, result_omitted = job.result_omitted,
  }
  for field, value in pairs(job) do
    if field:sub(1, 5) == 'step:' then
      more[field] = value
    end
  end
  return next(more) and more
end

-- Delete all that leads to a finished job.
local function disconnect(job)
  local keys = bucket('keys', job.key)
  call('HDEL', bucket('ids', job.id), job.id)
  if job.apart then
    call('DEL', ns .. 'apart:' .. job.id)
  end
  call('HDEL', ns .. 'repeats', job.place)
  if call('HGET', keys, job.key) == job.id then
    call('HDEL', keys, job.key)
  end
  local names = call('HGET', bucket('aliased', job.id), job.id)
  if names then
    for _, name in ipairs(cmsgpack.unpack(names)) do
      call('HDEL', bucket('aliases', name), name)
    end
    call('HDEL', bucket('aliased', job.id), job.id)
  end
  if job.scope then
    call('ZREM', ns .. 'scope:' .. job.scope, job.id)
  end
end

-- Delete a finished job.
function forget(job)
  local n, entry_id = stream_of(job.place)
  call('XDEL', ns .. 'finished:' .. n, entry_id)
  disconnect(job)
end
