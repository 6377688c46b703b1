-- How a job ends. Each function keeps the job's table and all its keys in step.

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

-- Its message counts as sent at `sent_at`; without a sign that it is lost, it is looked after at `check`.
local function await(job, check)
  call('ZADD', ns .. 'due', check, job.id)
  call('ZADD', ns .. 'waiting:' .. job.queue, job.sent_at, job.id)
end

-- The job has ended: the one it waited behind need not mind it, and the one that waits behind it may begin.
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
    call('HSET', bucket('keys', trail.key), trail.key, '@' .. trail.id)
  end
end

local function number_of(kind)
  local n = call('HGET', ns .. 'kinds', kind)
  if not n then
    n = digits(call('HINCRBY', ns .. 'kinds', 'last', 1))
    call('HSET', ns .. 'kinds', n, kind, kind, n)
  end
  return n
end

-- The fields always stand in this order: the server then keeps their names once for many entries. Times are told by
-- their distance, a small number; and what few jobs have is packed into one field, which is empty for all others.
local function add_entry(stream, stamp, number, job)
  local more = {
    scope = job.scope, caller = job.caller, digest = job.digest, crashes = job.crashes, past = job.past,
    behind = job.behind, trail_id = job.trail_id, reason = job.reason, error = job.error, progress = job.progress,
    settled_at = job.settled_at, attempt = job.attempt ~= '1' and job.attempt or nil,
  }
  if job.steps then
    for field, value in pairs(job) do
      if field:sub(1, 5) == 'step:' then
        more[field] = value
      end
    end
  end
  local begun, fence = '', job.fence
  if job.begun_at then
    begun, fence = digits(stamp - job.begun_at), digits(job.fence - job.begun_at)
  end
  return redis.pcall('XADD', stream, stamp .. '-' .. number, 'id', job.id, 'key', job.key,
    'created', digits(stamp - job.created_at), 'begun', begun, 'fence', fence, 'holder', job.holder or '',
    'worker', job.worker or '', 'result', job.result or '', 'more', next(more) and cmsgpack.pack(more) or '')
end

-- Completed or cancelled: from a hash of its own to an entry in the stream of its kind.
local function finish(job, state)
  local n = number_of(cjson.encode({ state, job.task, job.queue, job.retention, job.history }))
  local stream, stamp, number = ns .. 'finished:' .. n, at, '0'
  local added = add_entry(stream, stamp, number, job)
  if added.err then
    if not added.err:find('equal or smaller') then
      error(added.err)
    end
    -- Another ended in this very microsecond, or the clock was set back: this one goes behind the last.
    local about = call('XINFO', 'STREAM', stream)
    for i = 1, #about, 2 do
      if about[i] == 'last-generated-id' then
        stamp, number = about[i + 1]:match('^(%d+)%-(%d+)$')
      end
    end
    number = digits(number + 1)
    job.settled_at = tonumber(stamp) ~= now and at or nil
    add_entry(stream, stamp, number, job)
  end
  local place = place_of(n, stamp, number)
  call('HSET', bucket('ids', job.id), job.id, place)
  if not job.behind then
    call('HSET', bucket('keys', job.key), job.key, place)
  end
  if job.duplicates then
    call('HSET', ns .. 'repeats', place, job.duplicates)
  end
  if job.scope then
    call('ZADD', ns .. 'scope:' .. job.scope, at, job.id)
  end
  call('DEL', ns .. 'job:' .. job.id, ns .. 'body:' .. job.id)
  call('ZREM', ns .. 'due', job.id)
  call('ZREM', ns .. job.state .. ':' .. job.task, job.id)
  if job.state == QUEUED then
    call('ZREM', ns .. 'waiting:' .. job.queue, job.id)
  end
  let_follow(job)
  job.state, job.place, job.changed_at, job.settled_at = state, place, at, at
  job.lease_until, job.not_before, job.cancel_requested = nil, nil, nil
end
