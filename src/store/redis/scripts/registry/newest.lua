-- Returns the id of the newest change of each part, or 0-0. One call for all parts of a server, so
-- that an idle node asks once.
--
-- KEYS  changes (stream) of each part
local newest = {}
for place, changes in ipairs(KEYS) do
  local change = redis.call('XREVRANGE', changes, '+', '-', 'COUNT', 1)[1]
  newest[place] = change and change[1] or '0-0'
end
return newest
