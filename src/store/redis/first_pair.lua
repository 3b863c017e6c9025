-- Fixed window or token bucket while its slot moves: a reservation in one quota, which another quota may deny a moment
-- later. It is of one key, and what gives it back (first_pair_back.lua) is so too. `pair_head.lua` and what follows it
-- come next.
--
-- ARGV  for how long, us: read from the start; ...

local hold = tonumber(table.remove(ARGV, 1))

