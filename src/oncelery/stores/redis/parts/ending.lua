-- How a job ends for good: from a hash of its own to an entry in the stream of its kind.

-- What lists do not show is kept apart if it is large: whoever pages through a stream reads its entries whole.
local function set_apart(job, more, result)
  local apart, size = { result = result or nil }, #(result or '')
  for field, value in pairs(more) do
    if field == 'past' or field == 'error' or field == 'replaced_by' or field:sub(1, 5) == 'step:' then
      apart[field], size = value, size + #value
    end
  end
  if size <= KEPT_WITH_ENTRY then
    return next(more) and more, result
  end
  call('SET', ns .. 'apart:' .. job.id, cmsgpack.pack(apart))
  for field in pairs(apart) do
    more[field] = nil
  end
  more.apart, more.error = '1', apart.error and apart.error:sub(1, SUMMARY_BYTES)
  return more, false
end

-- Times are told by their distance, which is a small number; and "null", the result of most jobs, by nothing.
local function add_entry(stream, stamp, number, job)
  local more, result
  if not job.plain then
    more = seldom(job)
  elseif job.settled_at then
    more = { settled_at = job.settled_at }
  end
  result = job.result ~= 'null' and job.result or false
  if more or (result and #result > KEPT_WITH_ENTRY) then
    more, result = set_apart(job, more or {}, result)
  end
  return redis.pcall('XADD', stream, stamp .. '-' .. number, 'id', job.id, 'job', cmsgpack.pack({
    job.key, stamp - job.created_at, job.begun_at and stamp - job.begun_at or false, job.holder or false,
    job.worker or false, job.caller or false, result, more }))
end

local function finish(job, state)
  local ending = state .. job.kind
  local n = call('HGET', ns .. 'endings', ending)
  if not n then
    n = digits(call('HINCRBY', ns .. 'endings', 'last', 1))
    call('HSET', ns .. 'endings', n, ending, ending, n)
  end
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
    added = add_entry(stream, stamp, number, job)
    if added.err then
      error(added.err)
    end
  end
  local place = n .. ('0'):rep(16 - #stamp) .. stamp .. (number ~= '0' and '-' .. number or '')
  call('HSET', bucket('ids', job.id), job.id, place)
  call('DEL', ns .. 'job:' .. job.id, ns .. 'body:' .. job.id)
  call('ZREM', ns .. 'live:' .. job.kind, job.id)
  if not job.plain then
    unlist(job, job.state, job.held)
    if job.duplicates then
      call('HSET', ns .. 'repeats', place, job.duplicates)
    end
    if job.scope then
      call('ZADD', ns .. 'scope:' .. job.scope, at, job.id)
      call('SREM', ns .. 'active:' .. job.scope, job.id)
    end
    let_follow(job)
  end
  job.state, job.place, job.changed_at, job.settled_at = state, place, at, at
  job.lease_until, job.not_before, job.cancel_requested = nil, nil, nil
end
