-- find: any -> the same
-- in: now, 2 limit, 3 task, 4 scope ('' = any), 5 since, 6 until ('' = open), 7 and 8 the time and the id at which the
--     page before ended ('' = the first page), then the states (none = any)
-- out: the time and the id at which this page ends ('' = nothing follows), then the jobs, newest change first

--include shared.lua
--include reading.lua
local limit, task, scope = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local since, before, cursor_at, cursor_id = tonumber(ARGV[5]) or 0, tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]

local wanted = {}
for i = 9, #ARGV do
  wanted[ARGV[i]] = true
end

local function wants(state, of_task)
  return (#ARGV < 9 or wanted[state]) and (task == '' or task == of_task)
end

local newest = math.min(before and before - 1 or math.huge, cursor_at or math.huge)

-- A source is a sorted set or a stream. Its head is the newest job in it that is not on a page yet.

local function bound(number)
  return number == math.huge and '+inf' or digits(number)
end

local function fetch_from_set(source)
  local rows = call('ZREVRANGEBYSCORE', source.key, bound(newest), bound(source.oldest), 'WITHSCORES',
    'LIMIT', source.fetched, FETCHED_AT_ONCE)
  source.fetched = source.fetched + FETCHED_AT_ONCE
  local heads = {}
  for i = 1, #rows, 2 do
    heads[#heads + 1] = { at = tonumber(rows[i + 1]), id = rows[i] }
  end
  return heads
end

local function fetch_from_stream(source)
  local last = source.newest == math.huge and '+' or digits(source.newest)
  local heads = {}
  for _, entry in ipairs(call('XREVRANGE', source.key, last, bound(source.oldest), 'COUNT', FETCHED_AT_ONCE)) do
    source.newest = tonumber(entry[1]:match('^%d+')) - 1
    heads[#heads + 1] = { at = source.newest + 1, id = entry[2][2], n = source.n, kind = source.kind, entry = entry }
  end
  return heads
end

local function advance(source)
  repeat
    source.next = source.next + 1
    if source.next > #source.heads then
      source.heads, source.next = source.fetch(source), 1
    end
    local head = source.heads[source.next]
    source.head = head
  until not head or not cursor_at or head.at < cursor_at or (head.at == cursor_at and head.id < cursor_id)
end

local sources = {}

local function add(source)
  source.heads, source.next, source.fetched, source.newest = {}, 0, 0, newest
  advance(source)
  if source.head then
    sources[#sources + 1] = source
  end
end

if scope ~= '' then
  add({ key = ns .. 'scope:' .. scope, fetch = fetch_from_set, oldest = since })
else
  for _, of_task in ipairs(task ~= '' and { task } or call('SMEMBERS', ns .. 'tasks')) do
    for _, state in ipairs({ QUEUED, RUNNING, BURIED }) do
      if wants(state, of_task) then
        add({ key = ns .. state .. ':' .. of_task, fetch = fetch_from_set, oldest = since })
      end
    end
  end
  local kinds = call('HGETALL', ns .. 'kinds')
  for i = 1, #kinds, 2 do
    local n, kind = kinds[i], tonumber(kinds[i]) and cjson.decode(kinds[i + 1])
    if kind and wants(kind[1], kind[2]) then
      local oldest = math.max(since, now - kind[5] + 1)
      add({ key = ns .. 'finished:' .. n, fetch = fetch_from_stream, oldest = oldest, n = n, kind = kind })
    end
  end
end

local function newer(a, b)
  return a.at > b.at or (a.at == b.at and a.id > b.id)
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
  local head = sources[best].head
  advance(sources[best])
  if not sources[best].head then
    table.remove(sources, best)
  end
  return head
end

local page, last, examined = { '', '' }, nil, 0
while true do
  local head = take_newest()
  if not head then
    return page
  end
  examined = examined + 1
  local job = readable(head.entry and unpack_entry(head.n, head.kind, head.entry) or known(head.id))
  local matches = job and wants(job.state, job.task)
  if (matches and #page == limit + 2) or examined > EXAMINED_AT_ONCE then
    page[1], page[2] = digits(last.at), last.id
    return page
  end
  last = head
  if matches then
    page[#page + 1] = told(job)
  end
end
