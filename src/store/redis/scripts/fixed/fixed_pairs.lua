
  -- A window of another length or anchor begins anew.
  local function pairs_of(columns, kinds)
    local found = {}
    for q, kind in ipairs(kinds) do
      local own = column_of(columns, kind[1], kind[2])
      found[q] = own and {own.first, own.second, own.tail} or {0, 0, ''}
    end
    return found
  end

  return {columns_of = columns_of, pairs_of = pairs_of, others = others}
end
