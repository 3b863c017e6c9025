-- Writes one record of a part together with its change, or a change alone. One script, since a
-- record without its change would reach no node, and a change without its record would be undone
-- by the next load.
--
-- ARGV  1 name; empty: only the change  2 the version that the record must have, empty: any, 0: none
--       3 a version that the next one exceeds  4 us until it ends, 0: never  5 the text of the
--       record without its first members, empty: remove it  6 the most records  7 the channel to
--       wake the nodes by  8 the most changes, and removals  9 us that both stay  10 the generation
--       that the node knows  11 the version of the record that the node has
--       from another registry, 0: none  12 a random
--       number, so that no other change has the version  13... fields of the change
-- Reply the word and its values: ok, version, TIME in us, the record before, the record after;
--       stale, the present record; full; none if there was nothing to remove; lost if the part is
--       another one than the node knows, or incomplete
local name, expected, body = ARGV[1], ARGV[2], ARGV[5]
local state = read_state()

local before, after = '', ''
if name ~= '' then
  if not state or state.generation ~= ARGV[10] or not is_whole(state) then return {'lost'} end
  before = redis.call('HGET', KEYS[1], name) or ''
  local ends = tonumber(string.match(before, '"expires_at":(%d+)') or 0)
  if ends > 0 and ends <= now then before = '' end
  -- Of another registry the node has entries that this one never had.
  local is_apart = ARGV[11] ~= '0' and expected == ARGV[11]
  if expected ~= '' and not is_apart and tonumber(expected) ~= version_of(before) then return {'stale', before} end
  if body ~= '' and before == '' and state.fields > tonumber(ARGV[6]) then return {'full'} end
end

-- The version is the id of the change. It exceeds TIME, the last change of this server, and what
-- the node has seen, since a failover may have lost changes.
local last = newest(state)
local version = math.max(now, last + 1, tonumber(ARGV[3]) + 1) + tonumber(ARGV[12])

-- If a right is missing, or XADD fails, nothing is written.
if name ~= '' then rehearse(state, ARGV[9]) end
local ends = 0
if name ~= '' and body ~= '' then
  if ARGV[4] ~= '0' then ends = now + tonumber(ARGV[4]) end
  after = '{"version":' .. digits(version) .. ',"at":' .. digits(now) .. ',"expires_at":' .. digits(ends) .. ','
    .. string.sub(body, 2)
end
-- Where nothing is to remove, a node that is cut off may still have the record. So the removal is
-- kept against it, and the log has no change.
local is_absent = name ~= '' and body == '' and before == '' and ARGV[11] == '0'
if not is_absent then
  log(version, last, ARGV[8], ARGV[9], {'name', name, 'before', before, 'after', after, unpack(ARGV, 13)})
end
if name ~= '' then
  if after ~= '' then
    put(state, name, after, ends)
  else
    remove(state, name, version)
    drop_removals(state, tonumber(ARGV[8]), now - tonumber(ARGV[9]))
  end
  state.newest = version
  write_state(state)
end
wake(ARGV[7])
if is_absent then return {'none'} end
return {'ok', digits(version), digits(now), before, after}
