-- How a submission becomes a job, or a duplicate of one. For reserve and begin, whose first inputs are the submission:
-- ARGV 2 id, 3 key, 4 task, 5 digest, 6 scope, 7 queue, 8 caller, 9 delay, 10 retention, 11 history.

local key, task, digest = ARGV[3], ARGV[4], ARGV[5]

-- `old` had the same id, but is past its history and only not pruned yet; `last` is the last job of the key.
local function accept(old, last, delay, body, behind)
  local job = { id = id }
  if body then
    call('SET', ns .. 'body:' .. id, body)
  end
  update(job, {
    key = key,
    task = task,
    state = QUEUED,
    digest = present(digest),
    scope = present(ARGV[6]),
    queue = ARGV[7],
    caller = present(ARGV[8]),
    created_at = at,
    changed_at = at,
    sent_at = now + delay,
    not_before = delay > 0 and now + delay or nil,
    retention = ARGV[10],
    history = ARGV[11],
    fence = last and last.fence or '0',
    behind = behind,
  })
  if old then
    forget(old)
  end
  call('SADD', ns .. 'tasks', task)
  list(job)
  if not behind then
    await(job, job.sent_at + SLOW_CHECK)
    call('HSET', bucket('keys', key), key, '@' .. id)
  end
  return job
end

local function payload_differs(job)
  return digest ~= '' and job.digest and digest ~= job.digest
end

-- Count a duplicate, on the job that answers it and in the audit.
local function note(job, answer)
  if job.place then
    job.duplicates = call('HINCRBY', ns .. 'repeats', job.place, 1)
  else
    job.duplicates = call('HINCRBY', ns .. 'job:' .. job.id, 'duplicates', 1)
  end
  local scope, hour = job.scope or '', digits(now - now % HOUR)
  call('HINCRBY', ns .. 'hour:' .. hour, cjson.encode({ job.task, scope, answer }), 1)
  call('ZADD', ns .. 'hours', hour, hour)
  call('XADD', ns .. 'duplicates', 'MAXLEN', '~', AUDIT_KEPT, '*', 'at', at, 'job_id', job.id,
    'task', job.task, 'scope', scope, 'caller', ARGV[8], 'answer', answer)
end
