-- A reservation: a charge that marks its states. Until the mark is over it may be taken back. `hold.lua` ends it.
--
-- KEYS  ..., the instant of the last reset: read from the end. Whoever gives back needs it, so while its slot moves and
--       that could not be done, nothing is reserved.
-- ARGV  ..., for how long, us: read from the end

local hold = tonumber(table.remove(ARGV))
table.remove(KEYS)

