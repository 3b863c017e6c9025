-- Begins the scripts of sliding windows, fixed windows and token buckets. A check follows, which
-- decides a list of costs for one key against all quotas of its policy and charges the allowed
-- ones. Or another operation follows, see `operation_head.lua`. Deciding and charging must be one
-- step. With two trips, two callers spend the same free units.
--
-- Most calls are checks, and half of a check's cost is the call. So one call may decide several
-- keys, each independently, at the same TIME.
--
-- Keys of a cluster lie in several slots, which KEYS does not allow. Several keys are therefore
-- arguments. While a slot moves, reading a missing key returns an error. The key is then uncharged,
-- and the caller sends it alone. Nothing may raise an error after the first write, so no key
-- disturbs the others.
--
-- Tables and loops over quotas took half of the time. So the code of a check is generated for each
-- number of quotas. The part between `each` and `end each` repeats, with the quota's number in
-- place of `_q`. `decide.lua` replaces the line `decide`.
--
-- KEYS  the state of each check, or none where they are arguments.
--
-- ARGV  numbers, packed as doubles:
--       from, to: the bounds, us, within which the caller expects TIME.
--       0, or in tests a substitute for TIME, us.
--       The number of checks; then for each check:
--         the place where its numbers end
--         for each quota, the numbers of its algorithm
--         the costs, in order, as runs: cost, repetitions
--       [the keys, if they are not KEYS]
--
-- Reply {TIME}        TIME is outside from .. to. Nothing was decided.
--       {TIME, ...}   For each check the result of its algorithm, or one of these:
--                     false   one of several checks: read or write failed, nothing was charged
--                     ''      the value is corrupt

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

-- An error ends the call of a single key, so that the caller receives it. Errors of one of several
-- keys leave the others undisturbed.
local call = checks == 1 and redis.call or redis.pcall
local names, base = KEYS, 0
if #KEYS == 0 then
  names, base = ARGV, 1
end

local reply = {now}

