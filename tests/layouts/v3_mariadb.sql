CREATE TABLE `anarchon_meta` (
  `name` varchar(64) NOT NULL,
  `value` text NOT NULL,
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci ROW_FORMAT=DYNAMIC;

CREATE TABLE `anarchon_jobs` (
  `name` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `hashes` text NOT NULL,
  `first_seen` bigint(20) NOT NULL,
  `seen` bigint(20) NOT NULL,
  `floor` bigint(20) DEFAULT NULL,
  `fence` bigint(20) NOT NULL,
  `supervised` smallint(6) NOT NULL,
  `paused` text DEFAULT NULL,
  `paused_by` text DEFAULT NULL,
  `paused_at` bigint(20) DEFAULT NULL,
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci ROW_FORMAT=DYNAMIC;

CREATE TABLE `anarchon_runs` (
  `job` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `slot` bigint(20) NOT NULL,
  `kind` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `state` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `trigger` text NOT NULL,
  `dispatch` bigint(20) NOT NULL,
  `unstarted` bigint(20) NOT NULL,
  `attempt` bigint(20) NOT NULL,
  `crashes` bigint(20) NOT NULL,
  `fence` bigint(20) NOT NULL,
  `node` text DEFAULT NULL,
  `owner` text DEFAULT NULL,
  `task_id` text DEFAULT NULL,
  `token` text DEFAULT NULL,
  `nonce` text DEFAULT NULL,
  `deadline` bigint(20) DEFAULT NULL,
  `span` bigint(20) DEFAULT NULL,
  `lease` bigint(20) DEFAULT NULL,
  `not_before` bigint(20) DEFAULT NULL,
  `retries` bigint(20) DEFAULT NULL,
  `stop` text DEFAULT NULL,
  `claimed_at` bigint(20) DEFAULT NULL,
  `queued_at` bigint(20) DEFAULT NULL,
  `started_at` bigint(20) DEFAULT NULL,
  `finished_at` bigint(20) DEFAULT NULL,
  `reason` text DEFAULT NULL,
  `until` bigint(20) DEFAULT NULL,
  `count` bigint(20) NOT NULL,
  `phase` smallint(6) GENERATED ALWAYS AS (case when `state` in ('abandoned','cancelled','failed','missed','published','skipped','succeeded') then 0 when `state` = 'buffered' then 2 else 1 end) STORED,
  PRIMARY KEY (`job`,`slot`,`kind`),
  KEY `anarchon_runs_finished` (`finished_at`),
  KEY `anarchon_runs_live` (`phase`,`job`,`slot`,`kind`),
  KEY `anarchon_runs_slot` (`slot` DESC,`job`,`kind`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci ROW_FORMAT=DYNAMIC;

CREATE TABLE `anarchon_nodes` (
  `id` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `name` text NOT NULL,
  `kind` text NOT NULL,
  `seen` bigint(20) NOT NULL,
  `app` text DEFAULT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci ROW_FORMAT=DYNAMIC;
