-- What a follower wants to know of a session at one moment.
-- KEYS: meta, ids, state.
-- ARGV: how many ids it has.
-- Replies: nil if there is none, else turn, epoch, length, packed ids after those, finish reason or '', milliseconds of
--          the lease, digest of the last take-over or creation or ''.

local meta, ids = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = redis.call('HMGET', meta, 'length', 'finish_reason', 'lease', 'turn', 'epoch', 'taken')
if not stored[1] or redis.call('STRLEN', ids) ~= 4 * tonumber(stored[1]) then
  return false
end
local tail = redis.call('GETRANGE', ids, 4 * ARGV[1], -1)
local left = math.max(0, tonumber(stored[3] or 0) - now)
return {stored[4] or '1', stored[5], stored[1], tail, stored[2] or '', left, stored[6] or ''}
