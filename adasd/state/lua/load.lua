-- A session at one moment: its three keys never come from different rounds. Not MULTI, which a full Redis refuses
-- even for reads.
-- KEYS: meta, ids, state.
-- Replies: fields and values of meta in turn, packed ids or nil, packed state or nil.

return {redis.call('HGETALL', KEYS[1]), redis.call('GET', KEYS[2]), redis.call('GET', KEYS[3])}
