-- reserve: (absent | past retention | buried | cancelled) -> queued; else the job that is there
-- in: now, the submission (see parts/accept.lua; in it, 7 on_duplicate, 8 max_active, 9 per_minute), 6 body (missing: none)
-- out: now: accepted, as its key's first job | accepted, now, fence, the job it waits behind
--      | reserved | existing | repeated | mismatched, and the job | full, for how long ('' = not known)

--include parts/shared.lua
--include parts/accept.lua
local on_duplicate, body = offer[7], ARGV[6]

-- The common case: neither its id nor its key is known.
local is_known = call('EXISTS', own) == 1 or call('HGET', bucket('ids', id), id) or call('HGET', namesakes, key)
if not is_known and digest == '' and follows == '' and scope == '' and delay == 0 and alias == '' then
  accept(nil, nil, body)
  return at
end

--include parts/reading.lua
--include parts/ending.lua
--include parts/changes.lua
--include parts/duplicate.lua
--include parts/alias.lua
local job = known(id)
if readable(job) then
  if job.key ~= key then
    return { 'mismatched', told(job) }
  end
  local fresh = job.state == QUEUED and not job.begun_at
  return { fresh and 'reserved' or 'existing', told(job) }
end

local asked, differs = named()
if asked then
  note(asked, differs and 'refused' or asked.state == COMPLETED and 'replayed' or 'joined')
  return { differs and 'mismatched' or 'repeated', told(asked) }
end

-- Answer a duplicate with this job, which the request's alias stands for from now on.
local function existing(found, answer)
  note(found, answer)
  if alias ~= '' and answer ~= 'rejected' then
    bind(found.id)
  end
  return { 'existing', told(found) }
end

local last = last_of(key)

-- Whether the scope has what it may have; if not, this submission takes its part of the scope's time.
local function full()
  local max_active, per_minute = offer[8] or 0, offer[9] or 0
  if scope == '' then
    return nil
  end
  if max_active > 0 and call('SCARD', ns .. 'active:' .. scope) >= max_active then
    return { 'full', '' }
  end
  if per_minute > 0 then
    local known = tonumber(call('HGET', ns .. 'paces', scope) or 0)
    -- More than a minute ahead is only what was taken before the clock was set back.
    local taken = math.min(math.max(known, now), now + MINUTE)
    local after = taken + MINUTE / per_minute
    local fits = after <= now + MINUTE
    if fits or taken < known then
      call('HSET', ns .. 'paces', scope, digits(fits and after or taken))
    end
    if not fits then
      return { 'full', digits(math.ceil(after - now - MINUTE)) }
    end
  end
end

if not last or not keeps_key(last) then
  local refusal = full()
  if refusal then
    return refusal
  end
  accept(last, job, body)
  return { 'accepted', at, last and last.fence or '0', '' }
end

if last.state == COMPLETED or on_duplicate == 'join' or on_duplicate == 'reject' then
  if payload_differs(last) then
    note(last, 'refused')
    return { 'mismatched', told(last) }
  end
  return existing(last, last.state == COMPLETED and 'replayed' or on_duplicate == 'reject' and 'rejected' or 'joined')
end

if on_duplicate == 'trail' then
  if last.begun_at and not last.trail_id then
    local refusal = full()
    if refusal then
      return refusal
    end
    accept(last, job, body, last.id)
    update(last, { trail_id = id })
    return { 'accepted', at, last.fence, last.id }
  end
  local waiting = last.trail_id and unfinished(last.trail_id) or last
  if body then
    call('SET', ns .. 'body:' .. waiting.id, body)
    update(waiting, { digest = present(key_digest) or false, amended = '1' })
  end
  return existing(waiting, 'amended')
end

-- replace
if last.state == RUNNING or last.trail_id then
  return existing(last, 'joined')
end
last.reason = 'replaced'
finish(last, CANCELLED)
accept(last, job, body)
return { 'accepted', at, last.fence, '' }
