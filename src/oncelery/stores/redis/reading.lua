-- How any job is found and told. A job is a table of its fields; one that is missing is none.

local function present(value)
  return value ~= '' and value or nil
end

local function stream_of(place)
  local n, stamp, number = place:match('^(%d+)(%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d)%-?(%d*)$')
  return n, stamp .. '-' .. (present(number) or '0')
end

-- The fields of an entry always stand in the order in which ending.lua writes them.
local function unpack_entry(n, kind, entry)
  local stamp, number = entry[1]:match('^(%d+)%-(%d+)$')
  local fields = entry[2]
  local job = {
    place = place_of(n, stamp, number),
    state = kind[1],
    task = kind[2],
    queue = kind[3],
    retention = kind[4],
    history = kind[5],
    settled_at = stamp,
    id = fields[2],
    key = fields[4],
    created_at = stamp - fields[6],
    fence = fields[10],
    holder = present(fields[12]),
    worker = present(fields[14]),
  }
  if fields[8] ~= '' then
    job.begun_at = stamp - fields[8]
    job.fence = job.begun_at + fields[10]
    job.attempt = '1'
  end
  if job.state == COMPLETED then
    job.result = fields[16]
  end
  if fields[18] ~= '' then
    for field, value in pairs(cmsgpack.unpack(fields[18])) do
      job[field] = value
    end
  end
  job.changed_at = job.settled_at
  job.duplicates = call('HGET', ns .. 'repeats', job.place) or nil
  return job
end

local function finished(place)
  local n, entry_id = stream_of(place)
  local entry = call('XRANGE', ns .. 'finished:' .. n, entry_id, entry_id)[1]
  return entry and unpack_entry(n, cjson.decode(call('HGET', ns .. 'kinds', n)), entry)
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
  local place = call('HGET', bucket('keys', key), key)
  if not place then
    return nil
  elseif place:sub(1, 1) == '@' then
    return unfinished(place:sub(2))
  end
  return finished(place)
end

local function body_of(job)
  return not job.place and call('GET', ns .. 'body:' .. job.id) or nil
end

-- What a reply tells of a job: its fields and values, flat.
local function told(job)
  local flat = {}
  for field, value in pairs(job) do
    flat[#flat + 1] = field
    flat[#flat + 1] = value
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

local function readable(job)
  if not job or live(job) or job.state == BURIED or job.settled_at + job.history > now then
    return job
  end
  return nil
end

local function keeps_key(job)
  return live(job) or (job.state == COMPLETED and job.settled_at + job.retention > now)
end

local function lapsed(job)
  return job.lease_until and tonumber(job.lease_until) <= now
end
