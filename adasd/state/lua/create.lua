-- A new session at round 0, or the next turn of one that has ended.
-- KEYS: meta, ids, state.
-- ARGV: digest, ttl (seconds), lease (milliseconds), epoch and round of the turn it replaces ('' for none),
--       packed prompt ids, packed state, then (field, value) pairs of meta.
-- Replies: OK | GONE | CONFLICT <why>.

local meta, ids, state = KEYS[1], KEYS[2], KEYS[3]
local digest, ttl, lease, epoch, round, prompt, packed = unpack(ARGV, 1, 7)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local stored = redis.call('HMGET', meta, 'digest', 'epoch', 'round', 'finish_reason', 'lease')
-- The digest is drawn per call: seen again, it is this very call, repeated because its reply was lost.
if stored[1] == digest then
  return 'OK'
end
if epoch == '' then
  if stored[2] then
    return 'CONFLICT the session exists already'
  end
elseif not stored[2] then
  return 'GONE'
elseif not stored[4] and tonumber(stored[5] or 0) > now then
  return 'CONFLICT the session is running'
elseif stored[2] ~= epoch or stored[3] ~= round then
  return 'CONFLICT another request has gone on with the session'
end

-- A full Redis judges a script by its first write: SET it refuses, DEL it would let through, and all that follows.
redis.call('SET', ids, prompt, 'EX', ttl)
redis.call('DEL', meta)
redis.call('HSET', meta, 'digest', digest, 'taken', digest, 'lease', string.format('%.0f', now + lease), unpack(ARGV, 8))
redis.call('SET', state, packed, 'EX', ttl)
redis.call('EXPIRE', meta, ttl)
return 'OK'
