-- How a request finds its job again by what its caller calls it. For reserve and begin; goes with accept.lua.

-- Half a digest tells two payloads apart, and keeps the entry small.
local payload = digest:sub(1, 32)

-- The job that a request under this alias gets back, and whether its payload is another.
local function named()
  local bound = alias ~= '' and call('HGET', bucket('aliases', alias), alias)
  if not bound then
    return nil
  end
  local job_id, bound_payload = unpack(cmsgpack.unpack(bound))
  local job = readable(known(job_id))
  local answers = job and (live(job)
    or (job.state == COMPLETED and job.settled_at + math.max(job.retention, ALIAS_RETENTION) > now))
  if answers then
    return job, payload ~= '' and bound_payload ~= '' and payload ~= bound_payload
  end
end

local function names_of(job_id)
  local names = call('HGET', bucket('aliased', job_id), job_id)
  return names and cmsgpack.unpack(names) or {}
end

-- The job that the alias was bound to answers it no more.
local function unbind()
  local bound = call('HGET', bucket('aliases', alias), alias)
  local owner = bound and cmsgpack.unpack(bound)[1]
  if not owner then
    return
  end
  local others = {}
  for _, name in ipairs(names_of(owner)) do
    if name ~= alias then
      others[#others + 1] = name
    end
  end
  if #others > 0 then
    call('HSET', bucket('aliased', owner), owner, cmsgpack.pack(others))
  else
    call('HDEL', bucket('aliased', owner), owner)
  end
end

function bind(job_id)
  local names = names_of(job_id)
  if #names >= ALIASES_KEPT then
    return
  end
  unbind()
  names[#names + 1] = alias
  call('HSET', bucket('aliased', job_id), job_id, cmsgpack.pack(names))
  call('HSET', bucket('aliases', alias), alias, cmsgpack.pack({ job_id, payload }))
end
