-- What the migrations make of an empty SQLite database. Written by: make docs

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE artifacts (
	artifact_uuid VARCHAR(36) NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	artifact_type VARCHAR(32) NOT NULL, 
	storage_backend VARCHAR(32) NOT NULL, 
	storage_pointer TEXT NOT NULL, 
	content_type VARCHAR(255), 
	byte_size BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	schema_version SMALLINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by_job_id VARCHAR(36), 
	CONSTRAINT pk_artifacts PRIMARY KEY (artifact_uuid), 
	CONSTRAINT ck_artifacts_byte_size CHECK (byte_size >= 0)
);

CREATE INDEX ix_artifacts_job ON artifacts (created_by_job_id);

CREATE INDEX ix_artifacts_sha256 ON artifacts (sha256);

CREATE TABLE books (
	tenant_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(128) NOT NULL, 
	book_id VARCHAR(128) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	updated_at BIGINT NOT NULL, 
	CONSTRAINT pk_books PRIMARY KEY (tenant_id, project_id, user_id, book_id), 
	CONSTRAINT ck_books_state CHECK (state IN ('Library','Archive'))
);

CREATE TABLE hash_index (
	scope VARCHAR(160) NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	pointer TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	job_id VARCHAR(36) NOT NULL, 
	CONSTRAINT pk_hash_index PRIMARY KEY (scope, sha256)
);

CREATE TABLE jobs (
	job_id VARCHAR(36) NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	job_type VARCHAR(32) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	progress SMALLINT DEFAULT '0' NOT NULL, 
	idempotency_key VARCHAR(64) NOT NULL, 
	request_id VARCHAR(128), 
	error_code VARCHAR(64), 
	error_message_safe VARCHAR(1024), 
	error_debug_id VARCHAR(32), 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, 
	completed_at BIGINT, 
	failed_at BIGINT, 
	CONSTRAINT pk_jobs PRIMARY KEY (job_id), 
	CONSTRAINT ck_jobs_status CHECK (status IN ('pending','processing','completed','failed','skipped','canceled')), 
	CONSTRAINT ck_jobs_progress CHECK (progress BETWEEN 0 AND 100), 
	CONSTRAINT uq_jobs_idempotency_key UNIQUE (idempotency_key)
);

CREATE INDEX ix_jobs_scope_created ON jobs (tenant_id, project_id, created_at, job_id);

CREATE INDEX ix_jobs_scope_status ON jobs (tenant_id, project_id, status, created_at);

CREATE TABLE media_assets (
	asset_id VARCHAR(36) NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(128) NOT NULL, 
	book_id VARCHAR(128) NOT NULL, 
	media_type VARCHAR(64) NOT NULL, 
	available BOOLEAN NOT NULL, 
	local_path TEXT, 
	source_url TEXT, 
	job_id VARCHAR(36), 
	updated_at BIGINT NOT NULL, 
	CONSTRAINT pk_media_assets PRIMARY KEY (asset_id), 
	CONSTRAINT uq_media_assets_owner UNIQUE (tenant_id, project_id, user_id, book_id, media_type)
);

CREATE TABLE url_index (
	scope VARCHAR(160) NOT NULL, 
	url_sha256 VARCHAR(64) NOT NULL, 
	canonical_url TEXT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	pointer TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	content_type VARCHAR(255), 
	etag VARCHAR(1024), 
	last_modified VARCHAR(128), 
	seen_at BIGINT NOT NULL, 
	CONSTRAINT pk_url_index PRIMARY KEY (scope, url_sha256)
);

CREATE TABLE artifact_jobs (
	job_id VARCHAR(36) NOT NULL, 
	work_id VARCHAR(512) NOT NULL, 
	artifact_id VARCHAR(512) NOT NULL, 
	canonical_url TEXT NOT NULL, 
	request_url TEXT NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	state VARCHAR(24) NOT NULL, 
	run INTEGER DEFAULT '0' NOT NULL, 
	fence BIGINT DEFAULT '0' NOT NULL, 
	lease_owner VARCHAR(160), 
	lease_until BIGINT, 
	due_at BIGINT, 
	published_at BIGINT, 
	attempts INTEGER DEFAULT '0' NOT NULL, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	node VARCHAR(128), 
	ext VARCHAR(16), 
	expected_sha256 VARCHAR(64), 
	expected_media_type VARCHAR(255), 
	max_bytes BIGINT, 
	mirrors JSON, tenant_id VARCHAR(64) DEFAULT '' NOT NULL, part VARCHAR(16), paused_at BIGINT, purpose VARCHAR(16) CONSTRAINT ck_artifact_jobs_purpose CHECK (purpose IN ('refresh','repair','replay')), replay_from VARCHAR(16) CONSTRAINT ck_artifact_jobs_replay_from CHECK (replay_from IN ('stream','finalize','index','dedupe')), stood VARCHAR(24) CONSTRAINT ck_artifact_jobs_stood CHECK (stood IN ('DEDUPED','SKIPPED_DUPLICATE')), withdrawn_run INTEGER, postponed_since BIGINT, room_since BIGINT, 
	CONSTRAINT pk_artifact_jobs PRIMARY KEY (job_id), 
	CONSTRAINT ck_artifact_jobs_state CHECK (state IN ('PLANNED','LEASED','HEAD_DONE','RESUME_OK','STREAMING','FINALIZED','INDEXED','DEDUPED','FAILED','SKIPPED_DUPLICATE','CANCELED')), 
	CONSTRAINT ck_artifact_jobs_lease_pair CHECK ((lease_owner IS NULL) = (lease_until IS NULL)), 
	CONSTRAINT fk_artifact_jobs_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);

CREATE INDEX ix_artifact_jobs_lease ON artifact_jobs (lease_until) WHERE lease_until IS NOT NULL;

CREATE INDEX ix_artifact_jobs_published ON artifact_jobs (published_at, host) WHERE published_at IS NOT NULL;

CREATE TABLE artifact_ops (
	op_key VARCHAR(64) NOT NULL, 
	job_id VARCHAR(36) NOT NULL, 
	run INTEGER NOT NULL, 
	op_type VARCHAR(16) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	fence BIGINT NOT NULL, 
	started_at BIGINT NOT NULL, 
	finished_at BIGINT, 
	result_code VARCHAR(64), 
	result_json TEXT, 
	CONSTRAINT pk_artifact_ops PRIMARY KEY (op_key), 
	CONSTRAINT ck_artifact_ops_finished CHECK ((state = 'finished') = (result_json IS NOT NULL AND finished_at IS NOT NULL)), 
	CONSTRAINT ck_artifact_ops_state CHECK (state IN ('started','finished','failed','abandoned')), 
	CONSTRAINT fk_artifact_ops_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);

CREATE INDEX ix_artifact_ops_job ON artifact_ops (job_id);

CREATE INDEX ix_artifact_ops_started ON artifact_ops (started_at) WHERE state = 'started';

CREATE TABLE download_jobs (
	job_id VARCHAR(36) NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(128) NOT NULL, 
	book_id VARCHAR(128) NOT NULL, 
	media_type VARCHAR(64) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	source VARCHAR(32) NOT NULL, 
	source_url TEXT NOT NULL, 
	source_bytes BLOB, 
	external_job_id VARCHAR(128), 
	created_at_utc BIGINT NOT NULL, 
	updated_at_utc BIGINT NOT NULL, 
	completed_at_utc BIGINT, 
	first_not_found_at_utc BIGINT, 
	checked_at_utc BIGINT, 
	failure_reason VARCHAR(1024), 
	row_version BIGINT DEFAULT '0' NOT NULL, 
	due_at_utc BIGINT, 
	attempts INTEGER DEFAULT '0' NOT NULL, 
	removal VARCHAR(24), 
	size_bytes BIGINT, 
	done_bytes BIGINT, 
	moved_at_utc BIGINT, 
	CONSTRAINT pk_download_jobs PRIMARY KEY (job_id), 
	CONSTRAINT ck_download_jobs_status CHECK (status IN ('queued','downloading','completed','failed','canceled')), 
	CONSTRAINT ck_download_jobs_removal CHECK (removal IN ('remove','remove_with_files')), 
	CONSTRAINT ck_download_jobs_due_while_active CHECK (status IN ('queued','downloading') OR due_at_utc IS NULL), 
	CONSTRAINT fk_download_jobs_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);

CREATE INDEX ix_download_jobs_followed ON download_jobs (checked_at_utc) WHERE status IN ('queued','downloading') AND external_job_id IS NOT NULL;

CREATE INDEX ix_download_jobs_due ON download_jobs (due_at_utc) WHERE due_at_utc IS NOT NULL;

CREATE INDEX ix_download_jobs_removal ON download_jobs (updated_at_utc) WHERE removal IS NOT NULL;

CREATE UNIQUE INDEX uq_download_jobs_active ON download_jobs (tenant_id, project_id, user_id, book_id, media_type) WHERE status IN ('queued','downloading');

CREATE INDEX ix_download_jobs_external ON download_jobs (external_job_id);

CREATE TABLE download_files (
	job_id VARCHAR(36) NOT NULL, 
	position INTEGER NOT NULL, 
	path TEXT NOT NULL, 
	byte_size BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	artifact_uuid VARCHAR(36) NOT NULL, 
	CONSTRAINT pk_download_files PRIMARY KEY (job_id, position), 
	CONSTRAINT fk_download_files_artifact_uuid FOREIGN KEY(artifact_uuid) REFERENCES artifacts (artifact_uuid), 
	CONSTRAINT fk_download_files_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);

CREATE TABLE torrent_clients (
	source VARCHAR(32) NOT NULL, 
	answered_at_utc BIGINT, 
	outage_since_utc BIGINT, 
	CONSTRAINT pk_torrent_clients PRIMARY KEY (source)
);

CREATE TABLE job_artifacts (
	job_id VARCHAR(36) NOT NULL, 
	role VARCHAR(8) NOT NULL, 
	position INTEGER NOT NULL, 
	artifact_uuid VARCHAR(36) NOT NULL, 
	CONSTRAINT pk_job_artifacts PRIMARY KEY (job_id, role, position), 
	CONSTRAINT ck_job_artifacts_role CHECK (role IN ('input','result')), 
	CONSTRAINT fk_job_artifacts_artifact_uuid FOREIGN KEY(artifact_uuid) REFERENCES artifacts (artifact_uuid), 
	CONSTRAINT fk_job_artifacts_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE, 
	CONSTRAINT uq_job_artifacts_job_id_role_artifact_uuid UNIQUE (job_id, role, artifact_uuid)
);

CREATE TABLE manifest (
	artifact_uuid VARCHAR(36) NOT NULL, 
	job_id VARCHAR(36) NOT NULL, 
	run INTEGER NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	pointer TEXT NOT NULL, 
	shard_prefix VARCHAR(8), 
	byte_size BIGINT NOT NULL, 
	resume_decision VARCHAR(32), 
	resume_reason VARCHAR(64), 
	bytes_written BIGINT, 
	resumed_from_bytes BIGINT, 
	elapsed_ms BIGINT, 
	fsync_ms BIGINT, 
	avg_write_mibps FLOAT, 
	dedupe_action VARCHAR(16), 
	quota_json JSON, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_manifest PRIMARY KEY (artifact_uuid), 
	CONSTRAINT fk_manifest_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);

CREATE INDEX ix_manifest_job ON manifest (job_id);

CREATE TABLE artifact_faults (
	fault_id VARCHAR(36) NOT NULL, 
	artifact_uuid VARCHAR(36) NOT NULL, 
	fault VARCHAR(16) NOT NULL, 
	found_at BIGINT NOT NULL, 
	mended_at BIGINT, 
	CONSTRAINT pk_artifact_faults PRIMARY KEY (fault_id), 
	CONSTRAINT ck_artifact_faults_fault CHECK (fault IN ('missing','damaged')), 
	CONSTRAINT fk_artifact_faults_artifact_uuid FOREIGN KEY(artifact_uuid) REFERENCES artifacts (artifact_uuid) ON DELETE CASCADE
);

CREATE UNIQUE INDEX uq_artifact_faults_open ON artifact_faults (artifact_uuid) WHERE mended_at IS NULL;

CREATE INDEX ix_artifact_jobs_part ON artifact_jobs (part) WHERE (due_at IS NOT NULL OR state NOT IN ('DEDUPED','SKIPPED_DUPLICATE','CANCELED'));

CREATE TABLE cursors (
	name VARCHAR(64) NOT NULL, 
	position TEXT NOT NULL, 
	CONSTRAINT pk_cursors PRIMARY KEY (name)
);

CREATE INDEX ix_artifact_jobs_due ON artifact_jobs (priority, tenant_id, due_at) WHERE due_at IS NOT NULL AND published_at IS NULL AND paused_at IS NULL;

CREATE INDEX ix_artifact_jobs_due_host ON artifact_jobs (priority, tenant_id, host, due_at) WHERE due_at IS NOT NULL AND published_at IS NULL AND paused_at IS NULL;

CREATE TABLE artifact_retirements (
	artifact_uuid VARCHAR(36) NOT NULL, 
	retired_at BIGINT NOT NULL, 
	CONSTRAINT pk_artifact_retirements PRIMARY KEY (artifact_uuid), 
	CONSTRAINT fk_artifact_retirements_artifact_uuid FOREIGN KEY(artifact_uuid) REFERENCES artifacts (artifact_uuid) ON DELETE CASCADE
);

CREATE TABLE purged_jobs (
	job_id VARCHAR(36) NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	fence BIGINT NOT NULL, 
	purged_at BIGINT NOT NULL, 
	archive VARCHAR(255) NOT NULL, 
	archive_sha256 VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_purged_jobs PRIMARY KEY (job_id)
);

CREATE TABLE stores (
	backend VARCHAR(32) NOT NULL, 
	store_id VARCHAR(64) NOT NULL, 
	recorded_at BIGINT NOT NULL, 
	CONSTRAINT pk_stores PRIMARY KEY (backend)
);

CREATE TABLE nodes (
	name VARCHAR(64) NOT NULL, 
	net_at BIGINT, 
	disk_at BIGINT, 
	steady_since BIGINT NOT NULL, 
	drained_at BIGINT, 
	folder_id VARCHAR(64), 
	CONSTRAINT pk_nodes PRIMARY KEY (name)
);

CREATE TABLE schema_history (
	revision VARCHAR(32) NOT NULL, 
	works_from VARCHAR(32) NOT NULL, 
	migrated_at BIGINT NOT NULL, 
	CONSTRAINT pk_schema_history PRIMARY KEY (revision)
);

INSERT INTO "alembic_version" VALUES('0010');

INSERT INTO "schema_history" VALUES('0009','0008',0);

INSERT INTO "schema_history" VALUES('0010','0008',0);
