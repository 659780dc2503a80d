-- A new session at round 0.
-- KEYS: meta, ids, state.
-- ARGV: digest, ttl (seconds), packed prompt ids, packed state, then (field, value) pairs of meta.
-- Replies: OK | CONFLICT <why>.

local meta, ids, state = KEYS[1], KEYS[2], KEYS[3]
local digest, ttl, prompt, packed = unpack(ARGV, 1, 4)

if redis.call('EXISTS', meta) == 1 then
  -- The digest is drawn per call: seen again, it is this very call, repeated because its reply was lost.
  if redis.call('HGET', meta, 'digest') == digest then
    return 'OK'
  end
  return 'CONFLICT the session exists already'
end

redis.call('HSET', meta, 'digest', digest, unpack(ARGV, 5))
redis.call('SET', ids, prompt, 'EX', ttl)
redis.call('SET', state, packed, 'EX', ttl)
redis.call('EXPIRE', meta, ttl)
return 'OK'
