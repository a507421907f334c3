CREATE TABLE anarchon_meta (
    name VARCHAR(64) NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name)
);

ALTER TABLE anarchon_meta SET (fillfactor = 80);

CREATE TABLE anarchon_jobs (
    name VARCHAR(255) COLLATE "C" NOT NULL,
    hashes TEXT NOT NULL,
    first_seen BIGINT NOT NULL,
    seen BIGINT NOT NULL,
    floor BIGINT,
    fence BIGINT NOT NULL,
    supervised SMALLINT NOT NULL,
    paused TEXT,
    paused_by TEXT,
    paused_at BIGINT,
    PRIMARY KEY (name)
);

ALTER TABLE anarchon_jobs SET (fillfactor = 80);

CREATE TABLE anarchon_runs (
    job VARCHAR(255) COLLATE "C" NOT NULL,
    slot BIGINT NOT NULL,
    kind VARCHAR(255) COLLATE "C" NOT NULL,
    state VARCHAR(255) COLLATE "C" NOT NULL,
    trigger TEXT NOT NULL,
    dispatch BIGINT NOT NULL,
    unstarted BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    crashes BIGINT NOT NULL,
    fence BIGINT NOT NULL,
    node TEXT,
    owner TEXT,
    task_id TEXT,
    token TEXT,
    nonce TEXT,
    deadline BIGINT,
    span BIGINT,
    lease BIGINT,
    not_before BIGINT,
    retries BIGINT,
    stop TEXT,
    claimed_at BIGINT,
    queued_at BIGINT,
    started_at BIGINT,
    finished_at BIGINT,
    reason TEXT,
    until BIGINT,
    count BIGINT NOT NULL,
    PRIMARY KEY (job, slot, kind)
);

CREATE INDEX anarchon_runs_finished ON anarchon_runs (finished_at) WHERE state IN ('abandoned', 'cancelled', 'failed', 'missed', 'published', 'skipped', 'succeeded');

CREATE INDEX anarchon_runs_slot ON anarchon_runs (slot DESC, job, kind);

CREATE INDEX anarchon_runs_waiting ON anarchon_runs (job, slot, kind) WHERE state = 'buffered';

CREATE INDEX anarchon_runs_live ON anarchon_runs (job, slot, kind) WHERE state NOT IN ('abandoned', 'cancelled', 'failed', 'missed', 'published', 'skipped', 'succeeded');

ALTER TABLE anarchon_runs SET (fillfactor = 80);

CREATE TABLE anarchon_nodes (
    id VARCHAR(255) COLLATE "C" NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    seen BIGINT NOT NULL,
    app TEXT,
    PRIMARY KEY (id)
);

ALTER TABLE anarchon_nodes SET (fillfactor = 80);
