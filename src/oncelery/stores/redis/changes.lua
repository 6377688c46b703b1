-- The other ways a job changes, beside ending for good.

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

-- Back to queued, or there again; its message counts as sent when the delay is over.
local function queue(job, delay)
  local before = job.state
  update(job, {
    state = QUEUED,
    changed_at = at,
    sent_at = now + delay,
    not_before = delay > 0 and now + delay,
    lease_until = false,
    resent = false,
  })
  await(job, job.sent_at + SLOW_CHECK)
  list(job, before)
end

-- The run goes to the job's past, before the job is queued, granted again or ended.
local function end_run(job, cause, failure)
  local crashed = cause == 'crash' or cause == 'lapse'
  local past = job.past and cjson.decode(job.past) or {}
  past[#past + 1] = { job.attempt, job.fence, job.worker or '', job.begun_at, at, cause, failure or '' }
  if #past > PAST_KEPT then
    table.remove(past, 1)
  end
  update(job, {
    past = cjson.encode(past),
    attempt = job.attempt - (cause == 'handback' and 1 or 0),
    crashes = crashed and (job.crashes or 0) + 1 or job.crashes,
    interrupted = cause ~= 'retry' and '1' or job.interrupted,
    error = failure or job.error or false,
    lease_until = false,
  })
end

local function bury(job, reason, failure)
  local before = job.state
  update(job, {
    state = BURIED,
    reason = reason,
    error = failure or job.error or false,
    changed_at = at,
    settled_at = at,
    lease_until = false,
    not_before = false,
    cancel_requested = false,
  })
  list(job, before)
  call('ZREM', ns .. 'due', job.id)
  call('ZREM', ns .. 'waiting:' .. job.queue, job.id)
  let_follow(job)
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

-- Delete a finished job. What else has come to its id, key or scope stays.
local function forget(job)
  local ids, keys = bucket('ids', job.id), bucket('keys', job.key)
  local n, entry_id = stream_of(job.place)
  call('XDEL', ns .. 'finished:' .. n, entry_id)
  call('HDEL', ns .. 'repeats', job.place)
  if call('HGET', keys, job.key) == job.place then
    call('HDEL', keys, job.key)
  end
  if call('HGET', ids, job.id) == job.place then
    call('HDEL', ids, job.id)
    if job.scope then
      call('ZREM', ns .. 'scope:' .. job.scope, job.id)
    end
  end
end
