-- A session at one moment: its three keys never come from different rounds. Not MULTI, which a full Redis refuses
-- even for reads.
-- KEYS: meta, ids, state.
-- Replies: fields and values of meta in turn, packed ids or nil, packed state or nil, milliseconds left of the lease.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left = math.max(0, tonumber(redis.call('HGET', KEYS[1], 'lease') or 0) - now)
return {redis.call('HGETALL', KEYS[1]), redis.call('GET', KEYS[2]), redis.call('GET', KEYS[3]), left}
