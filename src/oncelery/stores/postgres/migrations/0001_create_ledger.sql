-- The ledger's tables, and the indexes that its verbs go by.

-- One row per job. Fixed widths come first, so that no padding lies between them. Every text is compared byte by byte
-- ("C"), as Python does, whatever the database's language.
CREATE TABLE jobs (
  fence bigint NOT NULL,
  duplicates bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  changed_at timestamptz NOT NULL,
  not_before timestamptz,
  begun_at timestamptz,
  settled_at timestamptz,
  retained_until timestamptz,
  lease_until timestamptz,
  -- Until when a finished job is readable; null while it is live, and for a dead letter, which stays.
  expires_at timestamptz,
  -- Until when someone who opens a message of it is taken to be alive.
  opened_until timestamptz,
  -- When its message was last sent, as far as the ledger knows; ahead of time while it is delayed.
  sent_at timestamptz NOT NULL,
  -- When to look after it. A running job is looked after no earlier than its lease lapses: see renew.sql.
  next_check timestamptz NOT NULL,
  -- How long the lease of its run is; null before the first.
  lease_for interval,
  retention interval NOT NULL,
  history interval NOT NULL,
  attempt integer NOT NULL DEFAULT 0,
  crashes integer NOT NULL DEFAULT 0,
  -- How often the sweeper has published it since it was sent; how often a delivery of it led to a death, not to a run.
  resent integer NOT NULL DEFAULT 0,
  received integer NOT NULL DEFAULT 0,
  -- The last job of its key. (Not one that waits behind it.)
  newest boolean NOT NULL,
  cancel_requested boolean NOT NULL DEFAULT false,
  -- A run of it was cut short: its effect may have happened.
  interrupted boolean NOT NULL DEFAULT false,
  -- Its body is not the one first submitted.
  amended boolean NOT NULL DEFAULT false,
  -- It has rows in steps.
  stepped boolean NOT NULL DEFAULT false,
  state text COLLATE "C" NOT NULL CHECK (state IN ('queued', 'running', 'completed', 'buried', 'cancelled')),
  id text COLLATE "C" PRIMARY KEY,
  key text COLLATE "C" NOT NULL,
  task text COLLATE "C" NOT NULL,
  scope text COLLATE "C" NOT NULL,
  queue text COLLATE "C" NOT NULL,
  caller text COLLATE "C" NOT NULL,
  digest text COLLATE "C" NOT NULL,
  follows text COLLATE "C" NOT NULL,
  holder text COLLATE "C" NOT NULL DEFAULT '',
  worker text COLLATE "C" NOT NULL DEFAULT '',
  -- The job that must end before this one, and the one that waits for this one.
  behind text COLLATE "C" NOT NULL DEFAULT '',
  trail_id text COLLATE "C" NOT NULL DEFAULT '',
  reason text COLLATE "C" NOT NULL DEFAULT '',
  cancel_reason text COLLATE "C" NOT NULL DEFAULT '',
  -- Why a completed job has no result.
  result_omitted text COLLATE "C" NOT NULL DEFAULT '',
  -- json, not jsonb: an error's message may hold the NUL character, which jsonb refuses.
  error json,
  progress json,
  past json[] NOT NULL DEFAULT '{}',
  body bytea,
  result bytea,
  -- What took the place of a completed task.
  replaced_by bytea
) WITH (
  -- Room on each page for renew and record, which touch no indexed column and so leave the indexes alone.
  fillfactor = 90,
  -- Every job leaves two dead versions behind; the default waits until a fifth of the table is dead.
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05
);

-- One last job per key: no race between two submissions can accept both.
CREATE UNIQUE INDEX jobs_of_key ON jobs (key) WHERE newest;

-- due: what was published again or freed; what ends instead of being published; what waits in each queue, oldest first.
-- (Running jobs are as few as the workers' slots and are found by their state: an index on lease_until would have to
-- follow every renewal.)
CREATE INDEX jobs_to_check ON jobs (next_check) WHERE state = 'queued' AND behind = '';
CREATE INDEX jobs_unpublishable ON jobs (next_check) WHERE state = 'queued' AND body = '';
CREATE INDEX jobs_resent ON jobs (next_check) WHERE state = 'queued' AND resent > 0;
CREATE INDEX jobs_waiting ON jobs (queue, sent_at) WHERE state = 'queued' AND behind = '' AND resent = 0;

-- find, newest change first. Nearly all jobs are completed, so an index of all states would be one of that state.
CREATE INDEX jobs_by_change ON jobs (changed_at);
CREATE INDEX jobs_by_state ON jobs (state, changed_at) WHERE state <> 'completed';
CREATE INDEX jobs_by_task ON jobs (task, changed_at);
CREATE INDEX jobs_by_scope ON jobs (scope, changed_at) WHERE scope <> '';

-- A scope's quota of jobs that are queued or running.
CREATE INDEX jobs_active ON jobs (scope) WHERE scope <> '' AND state IN ('queued', 'running');

-- prune
CREATE INDEX jobs_to_prune ON jobs (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE steps (
  job_id text COLLATE "C" NOT NULL REFERENCES jobs ON DELETE CASCADE,
  name text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (job_id, name)
);

-- What callers call their requests, beside the keys of the work: as many as a job may have, and they go with it.
CREATE TABLE aliases (
  alias text COLLATE "C" PRIMARY KEY,
  digest text COLLATE "C" NOT NULL,
  job_id text COLLATE "C" NOT NULL REFERENCES jobs ON DELETE CASCADE
);
CREATE INDEX aliases_of_job ON aliases (job_id);

-- When the newest job that has begun was sent, for each queue: what was sent earlier and still waits may be lost.
CREATE TABLE watermarks (
  queue text COLLATE "C" PRIMARY KEY,
  sent_at timestamptz NOT NULL
) WITH (fillfactor = 10);

-- Up to when a scope's time is taken by jobs that were accepted, for those that have a quota. Whoever accepts one holds the
-- row until it is done, so that two at once cannot both take the last place.
CREATE TABLE paces (
  scope text COLLATE "C" PRIMARY KEY,
  taken timestamptz NOT NULL
) WITH (fillfactor = 10);

-- The audit: who was answered what; the newest of them.
CREATE TABLE duplicates (
  place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL,
  job_id text COLLATE "C" NOT NULL,
  task text COLLATE "C" NOT NULL,
  scope text COLLATE "C" NOT NULL,
  caller text COLLATE "C" NOT NULL,
  answer text COLLATE "C" NOT NULL
);
CREATE INDEX duplicates_by_time ON duplicates (at);
CREATE INDEX duplicates_by_task ON duplicates (task, place);
CREATE INDEX duplicates_by_scope ON duplicates (scope, place) WHERE scope <> '';

-- The audit by hour, of those that are no longer listed.
CREATE TABLE duplicate_hours (
  hour timestamptz NOT NULL,
  count bigint NOT NULL,
  scope text COLLATE "C" NOT NULL,
  task text COLLATE "C" NOT NULL,
  answer text COLLATE "C" NOT NULL,
  PRIMARY KEY (scope, hour, task, answer)
) WITH (fillfactor = 50);
CREATE INDEX duplicate_hours_by_time ON duplicate_hours (hour);

-- What count has added up.
CREATE TABLE decisions (
  task text COLLATE "C" NOT NULL,
  decision text COLLATE "C" NOT NULL,
  count bigint NOT NULL,
  PRIMARY KEY (task, decision)
) WITH (fillfactor = 50);
