-- Decides a list of costs for one key against all quotas of its policy, and charges what it admits. Most calls are
-- such, and half of what one costs is the call; so one may decide for several keys, each by itself, at the same TIME.
--
-- Several keys of a cluster are in several slots, and KEYS must not be; so there they are told as arguments, and a key
-- that this server does not have, since its slot is moving, answers an error when it is read. Nothing of it has been
-- charged by then, and the caller asks for it alone. So that no key disturbs the others, nothing may raise an error
-- behind the first write.
--
-- Tables and loops over quotas took half of the time. So a check is written out for each number of quotas: what is
-- between `each` and `end each` is repeated with the number of the quota in place of `_q`.
--
-- KEYS  the state of each check; none where they are arguments
-- ARGV  numbers, packed as doubles:
--       from, to (the instants, us, between which the caller believes TIME to be); 0, or what is taken for TIME, us, by
--       tests only; how many checks; then for each:
--         where its numbers end
--         for each quota, what its algorithm needs
--         the costs, in order, as runs: cost, how many times
--       [the keys, if they are not KEYS]
--
-- Reply {TIME}             when TIME is not within from .. to: nothing was decided
--       {TIME, ...} and for each check what its algorithm tells, or one of
--         false              of one of several: it could not be read or written, and nothing was charged
--         ''                 what is there is nobody's count

local pack, read_at, text = struct.pack, struct.unpack, string.format
local numbers = ARGV[1]
local from, to, now, checks, at = read_at('<dddd', numbers)
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
if now < from or now > to then
  return {now}
end

-- An error ends the call of a single key, so that its caller is told which; those of several do not disturb one
-- another.
local call = checks == 1 and redis.call or redis.pcall
local names, base = KEYS, 0
if #KEYS == 0 then
  names, base = ARGV, 1
end

local reply = {now}

