SELECT EXISTS (SELECT 1 FROM dibs_queues WHERE category = ?1 AND removed = 0 AND cursor < 4611686018427387904) -- 2^62: of parked messages
