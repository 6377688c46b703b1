-- find: any -> the same
-- in: now, 2 limit, 3 task, 4 scope ('' = any), 5 since, 6 until ('' = open), 7 and 8 the time and the id at which the
--     page before ended ('' = the first page), then the states (none = any)
-- out: the time and the id at which this page ends ('' = nothing follows), then of the jobs, newest change first, what a
--      list shows: neither time nor bytes are spent on anything else, however large it is

--include parts/shared.lua
--include parts/reading.lua
local limit, task, scope = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local since, before, cursor_at, cursor_id = tonumber(ARGV[5]) or 0, tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]

local wanted = {}
for i = 9, #ARGV do
  wanted[ARGV[i]] = true
end

local tasks = {}

local function task_of(kind)
  tasks[kind] = tasks[kind] or cjson.decode(kind)[1]
  return tasks[kind]
end

local function wants(state, of_task)
  return (#ARGV < 9 or wanted[state]) and (task == '' or task == of_task)
end

-- Jobs come from several sources, each sorted by time and id, which are merged. A source has a few places at hand, and
-- fetches twice as many the next time: most have little to give, and one may have all.

local newest = math.min(before and before - 1 or math.huge, cursor_at or math.huge)

local function newer(a, b)
  return a.at > b.at or (a.at == b.at and a.id > b.id)
end

local function fetch_from_set(source)
  -- From RUNS on there are running ones.
  local rows = call('ZREVRANGEBYSCORE', source.key, digits(math.min(newest, RUNS - 1)), digits(source.oldest),
    'WITHSCORES', 'LIMIT', source.fetched, source.step)
  source.fetched = source.fetched + source.step
  local places = {}
  for i = 1, #rows, 2 do
    places[#places + 1] = { at = tonumber(rows[i + 1]), id = rows[i] }
  end
  return places
end

local function fetch_from_stream(source)
  local places = {}
  local function add(entries)
    for _, entry in ipairs(entries) do
      places[#places + 1] = { at = tonumber(entry[1]:match('^%d+')), id = entry[2][2], entry = entry }
      source.newest = '(' .. entry[1]
    end
  end
  add(call('XREVRANGE', source.key, source.newest, digits(source.oldest), 'COUNT', source.step))
  if #places > 0 then
    -- All that ended in the same microsecond, because they stand in another order than by id.
    add(call('XREVRANGE', source.key, source.newest, digits(places[#places].at)))
    table.sort(places, newer)
  end
  return places
end

-- These are listed by their next check. There are as many as workers have processes and threads: read and sort them.
local function fetch_running(source)
  local places = {}
  for _, id in ipairs(source.is_read and {} or call('ZRANGEBYSCORE', source.key, digits(RUNS), '+inf')) do
    local times = call('HMGET', ns .. 'job:' .. id, 'changed_at', 'fence')
    local changed_at = tonumber(times[1] or times[2])
    if changed_at and changed_at >= since and changed_at <= newest then
      places[#places + 1] = { at = changed_at, id = id }
    end
  end
  source.is_read = true
  table.sort(places, newer)
  return places
end

local function advance(source)
  repeat
    source.next = source.next + 1
    if source.next > #source.places then
      source.places, source.next = source.fetch(source), 1
      source.step = math.min(2 * source.step, FETCHED_AT_ONCE)
    end
    source.head = source.places[source.next]
  until not source.head or not cursor_at or newer({ at = cursor_at, id = cursor_id }, source.head)
end

local sources = {}

local function open(source)
  source.places, source.next, source.fetched, source.step = {}, 0, 0, 2
  source.newest = newest == math.huge and '+' or digits(newest)
  advance(source)
  if source.head then
    sources[#sources + 1] = source
  end
end

if scope ~= '' then
  -- A tenant's dead letters are looked at by people, and are few among all its jobs.
  local index = #ARGV == 9 and wanted[BURIED] and 'letters:' or 'scope:'
  open({ key = ns .. index .. scope, fetch = fetch_from_set, oldest = since })
else
  for _, kind in ipairs(call('ZRANGE', ns .. 'kinds', 0, -1)) do
    local of_task = task_of(kind)
    if wants(QUEUED, of_task) then
      open({ key = ns .. 'live:' .. kind, fetch = fetch_from_set, oldest = since })
      open({ key = ns .. 'held:' .. kind, fetch = fetch_from_set, oldest = since })
    end
    if wants(RUNNING, of_task) then
      open({ key = ns .. 'live:' .. kind, fetch = fetch_running })
    end
    if wants(BURIED, of_task) then
      open({ key = ns .. 'buried:' .. kind, fetch = fetch_from_set, oldest = since })
    end
  end
  local endings = call('HGETALL', ns .. 'endings')
  for i = 1, #endings, 2 do
    local n, ending = endings[i], endings[i + 1]
    if tonumber(n) then
      local state, kind = ending:match('^(%l+)(.*)$')
      local of_task, _, _, history = unpack(cjson.decode(kind))
      if wants(state, of_task) then
        local oldest = math.max(since, now - history + 1)
        open({ key = ns .. 'finished:' .. n, fetch = fetch_from_stream, oldest = oldest, n = n, ending = ending })
      end
    end
  end
end

local function take_newest()
  local best
  for i, source in ipairs(sources) do
    if not best or newer(source.head, sources[best].head) then
      best = i
    end
  end
  if not best then
    return nil
  end
  local source, place = sources[best], sources[best].head
  advance(source)
  if not source.head then
    table.remove(sources, best)
  end
  return place, source
end

-- What a list shows of an unfinished job, and what tells the rest of it.
local LISTED = { 'plain', 'key', 'state', 'kind', 'scope', 'caller', 'created_at', 'changed_at', 'not_before', 'begun_at',
  'settled_at', 'holder', 'worker', 'fence', 'lease_until', 'attempt', 'crashes', 'cancel_requested', 'behind', 'reason',
  'error', 'progress', 'duplicates' }
local CUT = { reason = true, error = true, progress = true, result_omitted = true }
local HIDDEN = { implied = true, result = true, replaced_by = true, past = true }

local kinds_of = {}

-- The state and the task of a job, and where it is if it has ended. What does not match is not read.
local function about(place, source)
  if source.ending then
    return source.ending
  end
  local fields = call('HMGET', ns .. 'job:' .. place.id, 'state', 'kind')
  if fields[1] then
    return fields[1] .. fields[2]
  end
  local found = call('HGET', bucket('ids', place.id), place.id)
  if not found then
    return nil
  end
  local n = stream_of(found)
  kinds_of[n] = kinds_of[n] or call('HGET', ns .. 'endings', n)
  return kinds_of[n], found
end

local function read(place, source, found)
  if place.entry then
    return unpack_entry(source.n, source.ending, place.entry)
  elseif found then
    return outline(found)
  end
  local values, job = call('HMGET', ns .. 'job:' .. place.id, unpack(LISTED)), { id = place.id }
  for i, field in ipairs(LISTED) do
    job[field] = values[i] or nil
  end
  return filled_in(job)
end

local function listed(job)
  local flat = {}
  -- Whoever reads it ends it again: see decode_cut in codec.py.
  job.error = job.error and job.error:sub(1, (job.error:find('","traceback":"', 1, true) or 0) - 1)
  for field, value in pairs(job) do
    if not HIDDEN[field] and field:sub(1, 5) ~= 'step:' then
      flat[#flat + 1] = field
      flat[#flat + 1] = CUT[field] and value:sub(1, SUMMARY_BYTES) or value
    end
  end
  return flat
end

local page, last, examined = { '', '' }, nil, 0
while true do
  local place, source = take_newest()
  if not place then
    return page
  end
  examined = examined + 1
  local ending, found = about(place, source)
  local state, kind = (ending or ''):match('^(%l+)(.*)$')
  local job = state and wants(state, task_of(kind)) and read(place, source, found)
  local matches = job and readable(job)
  if (matches and #page == limit + 2) or examined > EXAMINED_AT_ONCE then
    page[1], page[2] = digits(last.at), last.id
    return page
  end
  last = place
  if matches then
    page[#page + 1] = listed(job)
  end
end
