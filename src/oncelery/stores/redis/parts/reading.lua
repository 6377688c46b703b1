-- How any job is found and told. A job is a table of its fields; one that is missing is none.

-- What its kind says of a job.
local function tell_kind(job)
  job.task, job.queue, job.retention, job.history = unpack(cjson.decode(job.kind))
end

-- What follows from the fields that an unfinished job has.
local function filled_in(job)
  if job.plain then
    -- What follows from the other fields, and is written when the job is plain no more.
    job.plain, job.implied = nil, { changed_at = job.created_at, sent_at = job.created_at }
    if job.state == RUNNING then
      job.implied.begun_at, job.implied.changed_at, job.implied.attempt = job.fence, job.fence, '1'
    end
    for field, value in pairs(job.implied) do
      job[field] = value
    end
  end
  tell_kind(job)
  return job
end

local function unfinished(id)
  local flat = call('HGETALL', ns .. 'job:' .. id)
  if #flat == 0 then
    return nil
  end
  local job = { id = id }
  for i = 1, #flat, 2 do
    job[flat[i]] = flat[i + 1]
  end
  return filled_in(job)
end

local function present(value)
  return value ~= '' and value or nil
end

-- A place among the finished jobs, as the number of its kind and the id of its entry.
local function stream_of(place)
  local n, stamp, number = place:match('^(%d+)(%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d)%-?(%d*)$')
  return n, stamp .. '-' .. (present(number) or '0')
end

-- What ending.lua has packed.
local function unpack_entry(n, ending, entry)
  local stamp, number = entry[1]:match('^(%d+)%-(%d+)$')
  local key, created, begun, holder, worker, caller, result, more = unpack(cmsgpack.unpack(entry[2][4]))
  local job = {
    place = n .. ('0'):rep(16 - #stamp) .. stamp .. (number ~= '0' and '-' .. number or ''),
    state = ending:match('^%l+'),
    kind = ending:match('^%l+(.*)$'),
    settled_at = stamp,
    id = entry[2][2],
    key = key,
    created_at = stamp - created,
    holder = holder or nil,
    worker = worker or nil,
    caller = caller or nil,
  }
  tell_kind(job)
  if begun then
    job.begun_at = digits(stamp - begun)
    job.fence = job.begun_at
    job.attempt = '1'
  end
  if job.state == COMPLETED then
    job.result = result or 'null'
  end
  for field, value in pairs(more or {}) do
    job[field] = value
  end
  job.changed_at = job.settled_at
  job.duplicates = call('HGET', ns .. 'repeats', job.place) or nil
  return job
end

-- A finished job without what is kept apart.
local function outline(place)
  local n, entry_id = stream_of(place)
  local entry = call('XRANGE', ns .. 'finished:' .. n, entry_id, entry_id)[1]
  return entry and unpack_entry(n, call('HGET', ns .. 'endings', n), entry)
end

local function finished(place)
  local job = outline(place)
  local apart = job and job.apart and call('GET', ns .. 'apart:' .. job.id)
  for field, value in pairs(apart and cmsgpack.unpack(apart) or {}) do
    job[field] = value
  end
  return job or nil
end

local function known(id)
  local job = unfinished(id)
  if job then
    return job
  end
  local place = call('HGET', bucket('ids', id), id)
  return place and finished(place) or nil
end

local function last_of(key)
  local id = call('HGET', bucket('keys', key), key)
  return id and known(id)
end

local function body_of(job)
  return not job.place and call('GET', ns .. 'body:' .. job.id) or nil
end

-- What a reply tells of a job: its fields and values, flat.
local function told(job)
  local flat = {}
  for field, value in pairs(job) do
    if field ~= 'implied' then
      flat[#flat + 1] = field
      flat[#flat + 1] = value
    end
  end
  local body = body_of(job)
  if body then
    flat[#flat + 1] = 'body'
    flat[#flat + 1] = body
  end
  return flat
end

local function live(job)
  return job.state == QUEUED or job.state == RUNNING
end

-- Whether the job is not known, or is none that a run under that fence was granted: a fence never goes down.
local function absent(job, fence)
  return not job or tonumber(job.fence or 0) < tonumber(fence)
end

local function readable(job)
  if not job or live(job) or job.state == BURIED or job.settled_at + job.history > now then
    return job
  end
  return nil
end

local function keeps_key(job)
  return live(job) or (job.state == COMPLETED and tonumber(job.retention) > 0
    and job.settled_at + job.retention > now)
end

local function lapsed(job)
  return job.lease_until and tonumber(job.lease_until) <= now
end
