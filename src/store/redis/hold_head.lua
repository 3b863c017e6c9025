-- A reservation: a charge that marks its states. Until the mark is over it may be taken back. `hold.lua` ends it.
-- ARGV  ..., for how long, us: read from the end

local hold = tonumber(table.remove(ARGV))

